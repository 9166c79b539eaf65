"""The first administrator and the first API key, kept in credentials.env of the data
directory.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping

from django.contrib.auth import get_user_model
from django.contrib.auth.backends import ModelBackend
from django.contrib.auth.hashers import make_password
from django.db import transaction

from metadata.actors import Actor
from metadata.cache import snapshot
from metadata.config import config
from metadata.users import api_keys

FILE = config.data_dir / "credentials.env"
EVERYTHING = {"admin": ["*"]}


def ensure(*, url: str, actor: Actor) -> bool:
    """Write credentials.env (mode 0600) with a key and an administrator that the metadata
    accepts.

    What the file holds already is kept if it still works, so clients that have it go on.
    Where there is an administrator, none is made and no key: False, and the file lacks what
    it would need.
    """
    known = _read()
    administrators = get_user_model().objects.filter(is_superuser=True, is_active=True)
    # Passwords are hashed before the transaction begins: that takes seconds on a busy
    # machine, and MariaDB
    # ends a transaction that idles for 5 s.
    working = _working(known) if administrators.exists() else None
    password = secrets.token_urlsafe(12)
    hashed = make_password(password) if working is None else ""
    # committed when the file is written: nobody has rights that nobody knows
    with transaction.atomic():
        if working is None and administrators.exists():  # another server has just made one
            working = _working(known)
        credentials = _made(password, hashed, actor=actor) if working is None else working
        written = {"CATMQ_URL": url, **credentials}
        if written != known:
            _write(written)
    return "CATMQ_API_KEY" in written


def known() -> dict[str, str]:
    return _read()


def _read() -> dict[str, str]:
    if not FILE.exists():
        return {}
    lines = [line.partition("=") for line in FILE.read_text().splitlines() if "=" in line]
    return {name: value for name, _, value in lines}


def _write(values: Mapping[str, str]) -> None:
    draft = FILE.with_suffix(".new")
    draft.unlink(missing_ok=True)
    with os.fdopen(
        os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w"
    ) as file:
        file.writelines(f"{name}={value}\n" for name, value in values.items())
    draft.replace(FILE)


def _working(known: Mapping[str, str]) -> dict[str, str]:
    kept = {}
    if key := known.get("CATMQ_API_KEY", ""):
        kept = {"CATMQ_API_KEY": key} if snapshot.find_key(api_keys.digest(key)) else {}
    name, password = (
        known.get("CATMQ_ADMIN_USER", ""),
        known.get("CATMQ_ADMIN_PASSWORD", ""),
    )
    # Asked directly: there is no request here whose attempts could be counted.
    if name and ModelBackend().authenticate(None, username=name, password=password):
        kept |= {"CATMQ_ADMIN_USER": name, "CATMQ_ADMIN_PASSWORD": password}
    return kept


def _made(password: str, hashed: str, *, actor: Actor) -> dict[str, str]:
    """Create the first administrator, whose password has this hash, and a key that may do
    everything.
    """
    users = get_user_model().objects
    name = (
        f"admin-{secrets.token_hex(3)}"
        if users.filter(username="admin").exists()
        else "admin"
    )
    user = users.create_superuser(username=name, password=None)  # None is not hashed
    user.password = hashed
    user.save(update_fields=["password"])
    key = api_keys.create(
        name=f"server-{secrets.token_hex(4)}", rights=EVERYTHING, actor=actor
    )[1]
    return {
        "CATMQ_API_KEY": key,
        "CATMQ_ADMIN_USER": name,
        "CATMQ_ADMIN_PASSWORD": password,
    }
