"""The first administrator and the first API key, kept in credentials.env of the data directory."""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping

from django.contrib.auth import get_user_model
from django.contrib.auth.backends import ModelBackend

from metadata import keys, snapshot
from metadata.actors import Actor
from metadata.config import config

FILE = config.data_dir / "credentials.env"
EVERYTHING = {"admin": ["*"]}


def ensure(*, url: str, actor: Actor) -> None:
    """Writes credentials.env (mode 0600) with a key and an administrator that the metadata accepts.

    What the file holds already is kept if it still works, so programs that have it go on.
    """
    known = _read()
    user, password = _administrator(known)
    written = {
        "CATMQ_URL": url,
        "CATMQ_API_KEY": _api_key(known, actor=actor),
        "CATMQ_ADMIN_USER": user,
        "CATMQ_ADMIN_PASSWORD": password,
    }
    if written != known:
        _write(written)


def known() -> dict[str, str]:
    """What credentials.env holds, {} if there is none."""
    return _read()


def _read() -> dict[str, str]:
    if not FILE.exists():
        return {}
    lines = [line.partition("=") for line in FILE.read_text().splitlines() if "=" in line]
    return {name: value for name, _, value in lines}


def _write(values: Mapping[str, str]) -> None:
    draft = FILE.with_suffix(".new")
    draft.unlink(missing_ok=True)
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.writelines(f"{name}={value}\n" for name, value in values.items())
    draft.replace(FILE)


def _api_key(known: Mapping[str, str], *, actor: Actor) -> str:
    plaintext = known.get("CATMQ_API_KEY", "")
    if plaintext and snapshot.find_key(keys.digest(plaintext)):
        return plaintext
    name = f"server-{secrets.token_hex(4)}"
    return keys.create(name=name, rights=EVERYTHING, actor=actor)[1]


def _administrator(known: Mapping[str, str]) -> tuple[str, str]:
    """(name, password): the known one if it can log in, else a new one beside those that exist."""
    name, password = known.get("CATMQ_ADMIN_USER", ""), known.get("CATMQ_ADMIN_PASSWORD", "")
    # Asked directly: there is no request here whose attempts could be counted.
    if name and ModelBackend().authenticate(None, username=name, password=password):
        return name, password
    users = get_user_model().objects
    name = f"admin-{secrets.token_hex(3)}" if users.filter(username="admin").exists() else "admin"
    password = secrets.token_urlsafe(12)
    users.create_superuser(username=name, password=password)
    return name, password
