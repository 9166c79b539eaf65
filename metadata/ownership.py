"""Who owns which queue of a group, for lists and for moving positions by hand."""

from __future__ import annotations

from dataclasses import dataclass

from metadata import access, audit, consumers
from metadata.actors import Actor
from metadata.locks import no_group
from metadata.models import ConsumerGroup, QueueOffset
from metadata.transactions import reachable, transactional


@dataclass(frozen=True, slots=True)
class QueueOwner:
    """A queue that a group reads; `owner` is the member's name, None while the queue is free."""

    group: str
    group_id: int
    topic: str
    queue: int
    number: int
    node_id: int
    owner: str | None
    epoch: int


def queues(*, group: str, actor: Actor) -> list[QueueOwner]:
    """Every queue that a group reads, by topic and number. Needs any right on it; raises NotFound."""
    if not access.sees(actor, group):
        access.require(actor, "consume", group, what="group")
    with reachable():
        row = ConsumerGroup.objects.filter(name=group, deleted_at__isnull=True).first()
        if row is None or row.name != group:
            raise no_group(group)
        rows = QueueOffset.objects.filter(group=row).select_related("queue__topic", "owner__process")
        return [
            QueueOwner(
                group=group,
                group_id=row.pk,
                topic=one.queue.topic.name,
                queue=one.queue_id,
                number=one.queue.number,
                node_id=one.queue.node_id,
                owner=one.owner.process.name if one.owner else None,
                epoch=one.epoch,
            )
            for one in rows.order_by("queue__topic__name", "queue__number")
        ]


@transactional
def record_reset(*, row: QueueOwner, from_offset: int, to_offset: int, epoch: int, actor: Actor) -> None:
    """Takes over the epoch that a reset gave the queue on its node, and writes the audit row."""
    consumers.adopt_node_epoch(group_id=row.group_id, queue=row.queue, epoch=epoch)
    audit.record(
        actor=actor,
        verb="reset",
        kind="offset",
        name=f"{row.group}/{row.topic}/{row.queue}",
        before={"committed": from_offset},
        after={"committed": to_offset},
    )
