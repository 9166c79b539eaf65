"""The first administrator and the first API key, stored in credentials.env of the data
directory with the URLs of all brokers.
"""

from __future__ import annotations

import fcntl
import os
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from django.contrib.auth import get_user_model
from django.contrib.auth.backends import ModelBackend
from django.contrib.auth.hashers import make_password
from django.db import transaction

from metadata.actors import Actor
from metadata.brokers import discovery
from metadata.cache import snapshot
from metadata.config import config
from metadata.rules.rights import Right
from metadata.users import api_keys

FILE = config.data_dir / "credentials.env"
ALL_RIGHTS: dict[str, list[str]] = {Right.ADMIN: ["*"]}


def ensure(*, url: str, actor: Actor) -> bool:
    """Write credentials.env (mode 0600) with a key and an administrator that metadata
    accepts.

    Credentials in the file that still work are kept, so clients that use them continue to
    work. If an administrator exists that is not in the file, none is created and no key
    either. Return True if the file has a key.

    CATMQ_URL is `url`, of this server, and those of the other live brokers.
    """
    stored = read_credentials()
    administrators = get_user_model().objects.filter(is_superuser=True, is_active=True)
    # Hash passwords before the transaction begins: that takes seconds on a busy machine,
    # and MariaDB ends a transaction that idles for 5 s.
    valid = _check_credentials(stored) if administrators.exists() else None
    password = secrets.token_urlsafe(12)
    password_hash = make_password(password) if valid is None else ""
    other_urls = discovery.other_urls(config.broker_name, actor=actor)
    # Commit after the file is written, so no account exists whose password is not known.
    with _locked(), transaction.atomic():
        if valid is None and administrators.exists():  # another server has just created it
            valid = _check_credentials(stored)
        credentials = (
            _create_administrator(password, password_hash, actor=actor)
            if valid is None
            else valid
        )
        new_credentials = {"CATMQ_URL": _join_urls(url, other_urls), **credentials}
        if new_credentials != stored:
            _write(new_credentials)
    return "CATMQ_API_KEY" in new_credentials


def list_other_brokers(other_urls: Sequence[str]) -> None:
    """Write the URLs of the other brokers to the file, behind this server's own, which is
    the first. Does nothing without a file: then script/server did not start this broker.

    Raises OSError.
    """
    with _locked():
        stored = read_credentials()
        own_url = stored.get("CATMQ_URL", "").partition(",")[0]
        urls = _join_urls(own_url, other_urls)
        # Each worker of the broker calls this; the first one writes.
        if own_url and urls != stored["CATMQ_URL"]:
            _write({**stored, "CATMQ_URL": urls})


def _join_urls(own_url: str, other_urls: Sequence[str]) -> str:
    """Return URLs as CATMQ_URL takes them, each once.

    >>> _join_urls("http://a:1", ["http://b:2", "http://a:1"])
    'http://a:1,http://b:2'
    """
    return ",".join(dict.fromkeys([own_url, *other_urls]))


@contextmanager
def _locked() -> Iterator[None]:
    """Lock the file against other processes: a worker of the broker must not write back a
    key that `prepare` has just replaced.
    """
    # The directory is locked, because the file itself is replaced by each write.
    directory = os.open(FILE.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(directory, fcntl.LOCK_EX)
        yield
    finally:
        os.close(directory)


def _write(credentials: Mapping[str, str]) -> None:
    draft_path = FILE.with_suffix(".new")
    draft_path.unlink(missing_ok=True)
    # Opened with its final mode: before a chmod, others could read the password.
    handle = os.open(draft_path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "w") as file:
        file.writelines(f"{name}={value}\n" for name, value in credentials.items())
    draft_path.replace(FILE)


def read_credentials() -> dict[str, str]:
    if not FILE.exists():
        return {}
    lines = [line.partition("=") for line in FILE.read_text().splitlines() if "=" in line]
    return {name: value for name, _, value in lines}


def _check_credentials(stored: Mapping[str, str]) -> dict[str, str]:
    valid = {}
    if key := stored.get("CATMQ_API_KEY", ""):
        valid = {"CATMQ_API_KEY": key} if snapshot.find_key(api_keys.digest(key)) else {}
    name, password = (
        stored.get("CATMQ_ADMIN_USER", ""),
        stored.get("CATMQ_ADMIN_PASSWORD", ""),
    )
    # The backend is called directly: axes counts attempts by request, and here is none.
    if name and ModelBackend().authenticate(None, username=name, password=password):
        valid |= {"CATMQ_ADMIN_USER": name, "CATMQ_ADMIN_PASSWORD": password}
    return valid


def _create_administrator(
    password: str, password_hash: str, *, actor: Actor
) -> dict[str, str]:
    """Create the first administrator and a key with all rights. Return the variables of the
    file.
    """
    users = get_user_model().objects
    name = (
        f"admin-{secrets.token_hex(3)}"
        if users.filter(username="admin").exists()
        else "admin"
    )
    user = users.create_superuser(username=name, password=None)  # None is not hashed
    user.password = password_hash
    user.save(update_fields=["password"])
    key = api_keys.create(
        name=f"server-{secrets.token_hex(4)}", rights=ALL_RIGHTS, actor=actor
    )[1]
    return {
        "CATMQ_API_KEY": key,
        "CATMQ_ADMIN_USER": name,
        "CATMQ_ADMIN_PASSWORD": password,
    }
