"""Messages that people send or take back from the portal: one at a time, with an audit row."""

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


def send(*, topic: str, message: NewMessage, batch_id: UUID, actor: Actor, again: str = "") -> Receipt:
    """Store one message, once per `batch_id`; `again` is the id of the message that it repeats.

    Needs `produce`. The audit row comes first and tells of the try: what is stored cannot be taken back.
    Raises what `publish.publish` raises.
    """
    access.require(actor, "produce", topic)
    after = {"key": message.key, "tag": message.tag, "bytes": len(message.body), "again": again or None}
    _record("send", topic, after, actor)
    (fate,) = publish.publish(topic=topic, messages=[message], batch_id=batch_id, actor=actor)
    if isinstance(fate, CatmqError):
        raise fate
    assert isinstance(fate, Receipt)  # noqa: S101 - it has no delay
    return fate


def recall(*, topic: str, message_id: str, actor: Actor) -> None:
    """Take a delayed message of a topic back. Needs `produce`.

    The audit row comes first, as of `send`. Raises what `delayed_admin.recall` raises.
    """
    access.require(actor, "produce", topic)
    _record("recall", topic, {"message": message_id}, actor)
    delayed_admin.recall(message_id=message_id, actor=actor)


@transactional
def _record(verb: str, topic: str, after: Mapping[str, object], actor: Actor) -> None:
    audit.record(actor=actor, verb=verb, kind="topic", name=topic, before=None, after=after)
