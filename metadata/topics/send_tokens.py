"""Send tokens of topics, which Java clients need to send to a topic. A token is stored as a
digest and shown once.

A topic without a token accepts messages of every Java client in the allowed networks. A
topic may have two tokens, so that clients can change to the new token in turn.
"""

from __future__ import annotations

import secrets
from typing import Any

from django.db import transaction
from msgspec import Struct

from metadata.actors import Actor
from metadata.db import access, audit, rows
from metadata.db.changes import record_change
from metadata.db.clock import database_now, ms
from metadata.db.rows import lock_topic, no_topic
from metadata.db.transactions import reachable, transactional
from metadata.errors import Code, Conflict, Invalid, NotFound
from metadata.models import Topic
from metadata.rules.audit_verbs import Verb
from metadata.rules.rights import Right
from metadata.rules.topics.states import TopicState
from metadata.rules.wire import Number
from metadata.users.api_keys import digest

PREFIX = "send_"
MAX_TOKENS = 2  # of a topic
ID_CHARS = 8  # of the digest
MAX_CHARS = 200


class SendTokenView(Struct, frozen=True):
    """A send token of a topic, which Java clients must name; the token itself is not
    stored.
    """

    id: str  # the beginning of its digest
    created_at_ms: Number


def list_tokens(*, topic: str, actor: Actor) -> list[SendTokenView]:
    """Return the tokens of a topic, oldest first. Needs `manage`. Raises
    NotFound(topic_not_found).
    """
    access.require(actor, Right.MANAGE, topic, what="topic")
    with reachable():
        row = rows.find_by_name(
            Topic.objects.filter(state=TopicState.READY), topic, no_topic
        )
    return [_view(token) for token in _tokens(row)]


@transactional
def create(*, topic: str, actor: Actor, dry_run: bool = False) -> tuple[SendTokenView, str]:
    """Create a token. Return it with its plain text, which is not stored. Needs `manage`.

    With `dry_run` the text is '' and nothing is changed. From the first token on, Java
    clients without it cannot send to the topic. Raises NotFound(topic_not_found),
    Conflict(in_use) if the topic has two tokens.
    """
    access.require(actor, Right.MANAGE, topic, what="topic")
    plaintext = PREFIX + secrets.token_urlsafe(24)
    view = _add(lock_topic(topic), plaintext, actor)
    transaction.set_rollback(dry_run)
    return view, "" if dry_run else plaintext


@transactional
def import_token(*, topic: str, token: str, actor: Actor) -> bool:
    """Store a token that clients use already. Return False, and change nothing, if the
    topic has a token. Needs `manage`.

    Raises Invalid, NotFound(topic_not_found).
    """
    access.require(actor, Right.MANAGE, topic, what="topic")
    if not 1 <= len(token) <= MAX_CHARS:
        raise Invalid.field("token", f"must have 1 to {MAX_CHARS} characters")
    # Locked before the check, so that two imports cannot both store a token.
    row = lock_topic(topic)
    if row.send_tokens:
        return False
    _add(row, token, actor)
    return True


@transactional
def delete(*, topic: str, token: str, confirm: str | None, actor: Actor) -> None:
    """Delete the token with the id `token`, which `confirm` repeats. Needs `manage`.

    Without any token, every Java client in the allowed networks may send. Raises
    NotFound(topic_not_found | token_not_found), Invalid(not_confirmed).
    """
    access.require(actor, Right.MANAGE, topic, what="topic")
    row = lock_topic(topic)
    remaining = [
        stored for stored in _tokens(row) if not stored["digest"].startswith(token)
    ]
    # The length too: a shorter beginning could match both tokens.
    if len(token) != ID_CHARS or len(remaining) == len(_tokens(row)):
        raise NotFound(
            f"Topic {topic} has no send token {token[:100]}.", code=Code.TOKEN_NOT_FOUND
        )
    if confirm != token:
        raise Invalid(
            f"Deleting {token} must be confirmed: give confirm={token}",
            code=Code.NOT_CONFIRMED,
        )
    _save(row, remaining)
    before = {"id": token}
    audit.record(
        actor=actor, verb=Verb.DELETE_TOKEN, kind="topic", name=topic, before=before
    )


def _add(row: Topic, plaintext: str, actor: Actor) -> SendTokenView:
    tokens = _tokens(row)
    if len(tokens) >= MAX_TOKENS:
        detail = (
            f"Topic {row.name} has {MAX_TOKENS} send tokens: delete the one that no client "
            "uses any more."
        )
        raise Conflict(detail, code=Code.IN_USE)
    token = {"digest": digest(plaintext), "created_at_ms": ms(database_now())}
    view = _view(token)
    _save(row, [*tokens, token])
    audit.record(
        actor=actor, verb=Verb.ADD_TOKEN, kind="topic", name=row.name, after={"id": view.id}
    )
    return view


def _save(row: Topic, tokens: list[dict[str, Any]]) -> None:
    row.send_tokens = tokens
    row.save(update_fields=("send_tokens",))
    # Brokers check tokens against the topic in their snapshots.
    record_change("topic", row.pk)


def _tokens(row: Topic) -> list[dict[str, Any]]:
    return list(row.send_tokens or ())


def _view(token: dict[str, Any]) -> SendTokenView:
    return SendTokenView(token["digest"][:ID_CHARS], token["created_at_ms"])
