"""Sends and recalls of single messages by users of the portal, with an audit row for each."""

from __future__ import annotations

from collections.abc import Mapping
from uuid import UUID

from messagestore.engine.messages import NewMessage
from messagestore.produce import delayed_admin, publish
from messagestore.produce.publish import Receipt
from metadata.actors import Actor
from metadata.db import access, audit
from metadata.db.transactions import transactional
from metadata.errors import CatmqError
from metadata.rules.rights import Right


def send(
    *, topic: str, message: NewMessage, batch_id: UUID, actor: Actor, again: str = ""
) -> Receipt:
    """Store a message, once per `batch_id`, and return its receipt.

    `again`: id of the message that this send repeats, for the audit row. Needs the right
    `produce`. Raises the same errors as `publish.publish`, and the error of the message if
    it was refused.
    """
    access.require(actor, Right.PRODUCE, topic)
    after = {
        "key": message.key,
        "tag": message.tag,
        "bytes": len(message.body),
        "again": again or None,
    }
    # The audit row is committed before the send, so it records an attempt: a stored message
    # could not be removed if the audit row failed afterwards.
    _record("send", topic, after, actor)
    (fate,) = publish.publish(
        topic=topic, messages=[message], batch_id=batch_id, actor=actor
    )
    if isinstance(fate, CatmqError):
        raise fate
    assert isinstance(fate, Receipt)  # noqa: S101 - the message has no delay
    return fate


def recall(*, topic: str, message_id: str, actor: Actor) -> None:
    """Recall a delayed message of a topic. Needs the right `produce`.

    As in `send`, the audit row is committed first. Raises the same errors as
    `delayed_admin.recall`.
    """
    access.require(actor, Right.PRODUCE, topic)
    _record("recall", topic, {"message": message_id}, actor)
    delayed_admin.recall(message_id=message_id, actor=actor)


@transactional
def _record(verb: str, topic: str, after: Mapping[str, object], actor: Actor) -> None:
    audit.record(actor=actor, verb=verb, kind="topic", name=topic, before=None, after=after)
