"""API keys. A key is random, stored as a digest and shown once."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from django.db import transaction
from msgspec import Struct

from metadata.actors import Actor
from metadata.db import access, audit, paging, rows
from metadata.db.changes import record_change
from metadata.db.clock import database_now
from metadata.db.paging import Page, Window
from metadata.db.transactions import reachable, transactional
from metadata.errors import Code, Forbidden, NotFound
from metadata.models import ApiKey, Consumer
from metadata.rules.audit_verbs import Verb
from metadata.rules.rights import Right
from metadata.rules.settings import KEY, check_settings
from metadata.rules.topics.names import check_confirmed, check_name

PREFIX = "catmq_"


class KeyView(Struct, frozen=True):
    """An API key without its text."""

    id: int
    name: str
    rights: Mapping[str, tuple[str, ...]]
    max_messages_per_s: int | None
    max_bytes_per_s: int | None
    created_at_ms: int


def digest(plaintext: str) -> str:
    """Return the SHA-256 in hex. A slow hash, as for passwords, is not needed for 256 random
    bits.
    """
    return hashlib.sha256(plaintext.encode()).hexdigest()


@transactional
def create(
    *,
    name: str,
    rights: Mapping[str, Sequence[str]],
    actor: Actor,
    settings: Mapping[str, Any] | None = None,
    dry_run: bool = False,
) -> tuple[KeyView, str]:
    """Create a key. Return it with its plain text, which is not stored. With `dry_run` the
    text is '' and nothing is changed. Needs `admin`.

    `rights` is {"produce": ["orders*"], …}. An actor without `admin` on everything can
    grant only its own patterns. Raises Forbidden, Invalid, Conflict(already_exists).
    """
    check_name("key", name)
    access.require(actor, Right.ADMIN, name, what="key")
    values = access.check_rights(
        {right: list(patterns) for right, patterns in rights.items()}
    )
    access.require_grantable(actor, values)
    # A key with a send rate limit may not create keys, because they would have none.
    if actor.key_id is not None and not access.may_everything(actor):
        creator = ApiKey.objects.filter(pk=actor.key_id).first()
        if (
            creator is None
            or creator.max_messages_per_s is not None
            or creator.max_bytes_per_s is not None
        ):
            raise Forbidden(
                f"Key {actor.name} is limited in what it may send, so it may not make keys."
            )
    limits = check_settings(KEY, settings or {})
    plaintext = PREFIX + secrets.token_urlsafe(32)
    after = {"rights": values, **limits}
    row = rows.create(
        ApiKey.objects.all(),
        "Key",
        name=name,
        digest=digest(plaintext),
        created_at=database_now(),
        **after,
    )
    audit.record(actor=actor, verb=Verb.CREATE, kind="key", name=name, after=after)
    # Brokers check keys against their snapshot, so they must learn of the new key.
    record_change("key", row.pk)
    transaction.set_rollback(dry_run)
    return _view(row), "" if dry_run else plaintext


def list_ages() -> list[tuple[KeyView, int]]:
    """Return all keys by name, with their ages in days. Raises MetadataUnavailable."""
    with reachable():
        now = database_now()
        return [
            (_view(row), (now - row.created_at).days)
            for row in ApiKey.objects.order_by("name")
        ]


@transactional
def update(*, name: str, settings: Mapping[str, Any], actor: Actor) -> KeyView:
    """Change settings of a key (rules.settings.KEY). Needs `admin` on everything, because
    the limits of a key protect all teams.

    Raises Invalid, NotFound(key_not_found).
    """
    access.require_everything(actor, name, what="key")
    values = check_settings(KEY, settings)
    row = rows.find_by_name(ApiKey.objects.select_for_update(), name, _no_key)
    before = rows.changed_values(row, values)
    if before:
        rows.save_changes(row, before, values, actor=actor, kind="key", name=name)
        record_change("key", row.pk)
    return _view(row)


@transactional
def delete(*, name: str, confirm: str | None, actor: Actor) -> None:
    """Delete a key. Brokers refuse it after the next refresh of their snapshot.

    Needs `admin` on its name and on its rights. Raises NotFound(key_not_found),
    Invalid(not_confirmed).
    """
    access.require(actor, Right.ADMIN, name, what="key")
    row = rows.find_by_name(ApiKey.objects.select_for_update(), name, _no_key)
    access.require_grantable(actor, row.rights)
    check_confirmed(name, confirm)
    key_id, before = row.pk, {"rights": row.rights}
    # Members with this key expire, because their heartbeats are refused.
    Consumer.objects.filter(key=row).update(key=None)
    row.delete()
    audit.record(actor=actor, verb=Verb.DELETE, kind="key", name=name, before=before)
    record_change("key", key_id)


def find_key(*, name: str, actor: Actor) -> KeyView:
    """Return the key called `name`. Needs `admin` on its name and rights. Raises
    NotFound(key_not_found).
    """
    access.require(actor, Right.ADMIN, name, what="key")
    with reachable():
        row = rows.find_by_name(ApiKey.objects.all(), name, _no_key)
    access.require_grantable(actor, row.rights)
    return _view(row)


def list_keys(*, actor: Actor, window: Window) -> Page[KeyView]:
    """Return a page of the keys that the actor could have created, by name: those with
    names and rights within its own.
    """
    keys, following = paging.select_page(
        ApiKey.objects.all(), window=window, actor=actor, right=Right.ADMIN
    )
    return Page(
        tuple(_view(row) for row in keys if access.may_grant(actor, row.rights)), following
    )


def _no_key(name: str) -> NotFound:
    return NotFound(f"Key {name} does not exist.", code=Code.KEY_NOT_FOUND)


def _view(row: ApiKey) -> KeyView:
    rights = {right: tuple(patterns) for right, patterns in row.rights.items()}
    return rows.make_view(KeyView, row, rights=rights)
