"""Send tokens of topics: what Java clients must name to send to one. Kept as a digest,
shown once.

A topic without a token takes messages of every Java client that is let in. There may be
two, so that one takes the other's place while clients change over.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import Any

from django.db import transaction

from metadata.actors import Actor
from metadata.db import access, audit, rows
from metadata.db.changes import record_change
from metadata.db.clock import database_now, ms
from metadata.db.rows import lock_topic, no_topic
from metadata.db.transactions import reachable, transactional
from metadata.errors import Code, Conflict, Invalid, NotFound
from metadata.models import Topic
from metadata.users.api_keys import digest

PREFIX = "send_"
MOST = 2
ID_CHARS = 8  # of the digest
MOST_CHARS = 200


@dataclass(frozen=True, slots=True)
class SendTokenView:
    """A send token; the token itself cannot be had again. `id` is the begin of its digest."""

    id: str
    created_at_ms: int


def list_tokens(*, topic: str, actor: Actor) -> list[SendTokenView]:
    """The tokens of a topic, the oldest first. Needs `manage`; raises
    NotFound(topic_not_found).
    """
    access.require(actor, "manage", topic, what="topic")
    with reachable():
        row = rows.find_by_name(
            Topic.objects.filter(state=Topic.State.READY), topic, no_topic
        )
    return [_view(one) for one in _tokens(row)]


@transactional
def create(*, topic: str, actor: Actor, dry_run: bool = False) -> tuple[SendTokenView, str]:
    """A new token and its plain text, which is shown this once; with `dry_run` none is
    made. Needs `manage`.

    The first one ends all sends of Java clients without it. Raises
    NotFound(topic_not_found), Conflict(in_use) if there are two.
    """
    access.require(actor, "manage", topic, what="topic")
    plaintext = PREFIX + secrets.token_urlsafe(24)
    view = _add(lock_topic(topic), plaintext, actor)
    transaction.set_rollback(dry_run)
    return view, "" if dry_run else plaintext


@transactional
def import_token(*, topic: str, token: str, actor: Actor) -> bool:
    """Take over a token that clients have already; False if the topic has one. Needs
    `manage`.

    Raises Invalid, NotFound(topic_not_found).
    """
    access.require(actor, "manage", topic, what="topic")
    if not 1 <= len(token) <= MOST_CHARS:
        raise Invalid.field("token", f"must have 1 to {MOST_CHARS} characters")
    row = lock_topic(topic)
    if row.send_tokens:
        return False
    _add(row, token, actor)
    return True


@transactional
def delete(*, topic: str, token: str, confirm: str | None, actor: Actor) -> None:
    """Delete the token with the id `token`, which `confirm` repeats. Needs `manage`.

    Without the last one every Java client may send. Raises NotFound(topic_not_found |
    token_not_found), Invalid(not_confirmed).
    """
    access.require(actor, "manage", topic, what="topic")
    row = lock_topic(topic)
    rest = [one for one in _tokens(row) if not one["digest"].startswith(token)]
    if len(token) != ID_CHARS or len(rest) == len(_tokens(row)):
        raise NotFound(
            f"Topic {topic} has no send token {token[:100]}.", code=Code.TOKEN_NOT_FOUND
        )
    if confirm != token:
        raise Invalid(
            f"Deleting {token} must be confirmed: give confirm={token}",
            code=Code.NOT_CONFIRMED,
        )
    _save(row, rest)
    before = {"id": token}
    audit.record(actor=actor, verb="delete token", kind="topic", name=topic, before=before)


def _add(row: Topic, plaintext: str, actor: Actor) -> SendTokenView:
    tokens = _tokens(row)
    if len(tokens) >= MOST:
        said = (
            f"Topic {row.name} has {MOST} send tokens: delete the one that no client "
            "uses any more."
        )
        raise Conflict(said, code=Code.IN_USE)
    made = {"digest": digest(plaintext), "created_at_ms": ms(database_now())}
    view = _view(made)
    _save(row, [*tokens, made])
    audit.record(
        actor=actor, verb="add token", kind="topic", name=row.name, after={"id": view.id}
    )
    return view


def _save(row: Topic, tokens: list[dict[str, Any]]) -> None:
    row.send_tokens = tokens
    row.save(update_fields=("send_tokens",))
    record_change("topic", row.pk)


def _tokens(row: Topic) -> list[dict[str, Any]]:
    return list(row.send_tokens or ())


def _view(one: dict[str, Any]) -> SendTokenView:
    return SendTokenView(one["digest"][:ID_CHARS], one["created_at_ms"])
