"""Members of groups: register, heartbeat, leave, expire; and what they may acquire.

A member is one identity in a group: its instance_id, else its name. The row of an identity stays when
another incarnation takes it over, so the new process inherits the queues at once, each under epoch + 1,
and the old one is told `replaced`. A row that is gone means `expired`.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from secrets import token_hex
from uuid import UUID

from django.db.models import F

from metadata import access, consumer_ids, rebalance
from metadata.actors import Actor
from metadata.changes import changed
from metadata.clock import database_now, server_and_now
from metadata.consumer_ids import ConsumerId
from metadata.errors import Code, Invalid, MetadataUnavailable, NotFound
from metadata.gate import gated
from metadata.heartbeats import Assigned, HeartbeatAnswer, expired, heartbeat, replaced
from metadata.locks import group_by_id, group_by_name
from metadata.models import Consumer, ConsumerGroup, ConsumerGroupConsumer, Heartbeat, QueueOffset
from metadata.rules import liveness
from metadata.rules.names import check_spelling
from metadata.transactions import reachable, transactional

__all__ = [
    "Assigned",
    "HeartbeatAnswer",
    "OutageGuard",
    "Registered",
    "adopt_node_epoch",
    "check_owned",
    "expire",
    "heartbeat",
    "leave",
    "look",
    "register",
]

log = logging.getLogger(__name__)

MAX_HEARTBEAT_INTERVAL_MS = 3_000
MOST_EXPIRED = 500  # members in one pass
MOST_REPLACED = 16  # earlier processes of an identity that are remembered, so that none of them comes back


@dataclass(frozen=True, slots=True)
class Registered:
    """A registration's answer; `heartbeat_interval_ms` is how often the member must be heard."""

    consumer_id: str
    session_timeout_ms: int
    heartbeat_interval_ms: int


@dataclass(frozen=True, slots=True)
class _Applicant:
    """Who wants to be a member."""

    name: str
    incarnation: str
    instance_id: str
    sdk: str
    address: str
    key_id: int | None

    @property
    def identity(self) -> str:
        return self.instance_id or self.name


@gated
def register(
    *, group: str, name: str, incarnation: str, instance_id: str | None, sdk: str, address: str, actor: Actor
) -> Registered:
    """Makes the process a member of the group and rebalances it. Needs `consume` on the group.

    `incarnation` is a UUID made at the process's start: the same one again gets the same answer, another
    one replaces the earlier process of that identity. Raises Invalid, NotFound(group_not_found),
    Gone(replaced) for a process that was replaced itself, MetadataUnavailable.
    """
    access.require(actor, "consume", group, what="group")
    applicant = _Applicant(
        name=check_spelling("consumer", name),
        incarnation=_uuid(incarnation),
        instance_id=check_spelling("instance", instance_id, field="instance_id") if instance_id else "",
        sdk=sdk[:100],
        address=address[:100],
        key_id=actor.key_id,
    )
    group_id, registered, joined = _registered(group=group, applicant=applicant)
    if joined:
        _rebalance_now(group_id)
    return registered


def _uuid(text: str) -> str:
    try:
        return str(UUID(text))
    except ValueError:
        raise Invalid.field("incarnation", "must be a UUID made when the process started") from None


def _rebalance_now(group_id: int) -> None:
    """Runs the rebalance whose mark was just committed; if it cannot, the sweep over pending() will."""
    try:
        rebalance.rebalance(group_id)
    except (MetadataUnavailable, NotFound) as error:
        log.warning("group %d is rebalanced later: %s", group_id, error.detail)


@transactional
def _registered(*, group: str, applicant: _Applicant) -> tuple[int, Registered, bool]:
    """(group id, answer, whether a member was added)."""
    row = group_by_name(group)
    member = row.members.select_related("process").filter(identity=applicant.identity).first()
    if member is None:
        text, joined = _joined(row, applicant), True
    else:
        text, joined = _returned(row, member, applicant), False
    interval_ms = min(MAX_HEARTBEAT_INTERVAL_MS, row.session_timeout_ms // 3)
    return row.pk, Registered(text, row.session_timeout_ms, interval_ms), joined


def _joined(group: ConsumerGroup, applicant: _Applicant) -> str:
    """The consumer id of a new member; marks the group."""
    now = database_now()
    process = Consumer.objects.create(
        name=applicant.name,
        incarnation=applicant.incarnation,
        address=applicant.address,
        sdk=applicant.sdk,
        key_id=applicant.key_id,
    )
    member = ConsumerGroupConsumer.objects.create(
        group=group,
        process=process,
        identity=applicant.identity,
        instance_id=applicant.instance_id,
        consumer_id=token_hex(16),  # until the row has the id that the real one contains
        joined_at=now,
    )
    text = _issue(member, applicant)
    Heartbeat.objects.create(membership=member, last_seen=now)
    rebalance.mark(group.pk)
    log.info("group %s: %s joined", group.name, applicant.identity)
    return text


def _issue(member: ConsumerGroupConsumer, applicant: _Applicant) -> str:
    text = consumer_ids.issue(group_id=member.group_id, key_id=applicant.key_id, member_id=member.pk)
    member.consumer_id = text
    member.save(update_fields=("consumer_id",))
    return text


def _returned(group: ConsumerGroup, member: ConsumerGroupConsumer, applicant: _Applicant) -> str:
    """The consumer id of an identity that is there already: the same process again, or its successor."""
    if applicant.incarnation in member.replaced_incarnations:
        raise replaced()
    Heartbeat.objects.filter(pk=member.pk).update(last_seen=database_now())
    same_key = member.process.key_id == applicant.key_id
    if member.process.incarnation == applicant.incarnation and same_key:
        return member.consumer_id
    return _replace(group, member, applicant)


def _replace(group: ConsumerGroup, member: ConsumerGroupConsumer, applicant: _Applicant) -> str:
    """The successor's consumer id. It inherits the queues under epoch + 1; what was leaving goes at once."""
    if member.process.incarnation != applicant.incarnation:
        earlier = [*member.replaced_incarnations, member.process.incarnation]
        member.replaced_incarnations = earlier[-MOST_REPLACED:]
    Consumer.objects.filter(pk=member.process_id).update(
        name=applicant.name,
        incarnation=applicant.incarnation,
        address=applicant.address,
        sdk=applicant.sdk,
        key_id=applicant.key_id,
    )
    member.generation = 0
    member.instance_id = applicant.instance_id
    member.save(update_fields=("replaced_incarnations", "generation", "instance_id"))
    owned = QueueOffset.objects.filter(group=group, owner=member)
    handed = sum(rebalance.hand_over(row) for row in owned if row.target_id != member.pk)
    QueueOffset.objects.filter(group=group, owner=member).update(epoch=F("epoch") + 1)
    text = _issue(member, applicant)
    if handed:
        rebalance.next_generation(group.pk)
        changed("group", group.pk)
    log.info("group %s: %s was replaced by its next incarnation", group.name, applicant.identity)
    return text


@gated
def leave(*, consumer: ConsumerId, actor: Actor) -> None:
    """Ends a membership and gives its queues to the others at once; one that has ended already is fine."""
    group_id = consumer.group_id
    if _left(consumer=consumer, actor=actor):
        _rebalance_now(group_id)


@transactional
def _left(*, consumer: ConsumerId, actor: Actor) -> bool:
    try:
        group = group_by_id(consumer.group_id)
    except NotFound:
        return False
    access.require(actor, "consume", group.name, what="group")
    member = group.members.filter(pk=consumer.member_id, consumer_id=consumer.text).first()
    if member is None:
        return False
    _drop(group, [member.pk])
    log.info("group %s: %s left", group.name, member.identity)
    return True


def _drop(group: ConsumerGroup, members: Iterable[int]) -> None:
    """Removes memberships; their queues become free, and the group is marked. Caller holds the lock."""
    ids = sorted(members)
    Heartbeat.objects.filter(pk__in=ids).delete()
    QueueOffset.objects.filter(group=group, owner__in=ids).update(owner=None)
    QueueOffset.objects.filter(group=group, target__in=ids).update(target=None)
    rows = ConsumerGroupConsumer.objects.filter(pk__in=ids)
    processes = list(rows.values_list("process_id", flat=True))
    rows.delete()
    Consumer.objects.filter(pk__in=processes).delete()
    rebalance.mark(group.pk)


class OutageGuard:
    """What this process knows about the metadata database's clock (rules.liveness); safe for threads."""

    def __init__(self, watch: liveness.Watch | None = None) -> None:
        self._lock = threading.Lock()
        self._watch = watch

    def look(self) -> liveness.Watch:
        """The watch after one more look; a failed look forgets everything, so nobody expires for a while."""
        with self._lock:
            try:
                with reachable():
                    server, now = server_and_now()
            except MetadataUnavailable:
                self._watch = None
                raise
            look = liveness.Look(server=server, now=now, monotonic_s=time.monotonic())
            self._watch = liveness.observe(self._watch, look)
            return self._watch


_guard = OutageGuard()  # of this process


def look() -> None:
    """One look at the database's clock; every process that may ever expire members makes one each pass.

    Raises MetadataUnavailable, and then this process expires nobody for a full session timeout.
    """
    _guard.look()


def expire(*, guard: OutageGuard | None = None) -> int:
    """Expires members that were silent for session timeout + 1 s, and rebalances their groups; how many.

    One bounded pass, to be made every second. After an outage of the database, and for the first time in
    a process, nobody expires for a full session timeout (rules.liveness).
    """
    watch = (guard or _guard).look()
    by_group: dict[int, list[int]] = {}
    with reachable():
        for member, group_id in _silent(watch)[:MOST_EXPIRED]:
            by_group.setdefault(group_id, []).append(member)
    count = 0
    for group_id, members in sorted(by_group.items()):
        dead = _expired(group_id=group_id, members=members, watch=watch)
        if dead:
            count += dead
            _rebalance_now(group_id)
    return count


def _silent(watch: liveness.Watch) -> list[tuple[int, int]]:
    """(member, group) of those that seem dead."""
    rows = list(
        Heartbeat.objects.order_by("pk").values_list(
            "pk", "last_seen", "membership__group__session_timeout_ms", "membership__group_id"
        )
    )
    groups = {member: group_id for member, _, _, group_id in rows}
    dead = liveness.expired(watch, [(member, seen, timeout_ms) for member, seen, timeout_ms, _ in rows])
    return [(member, groups[member]) for member in dead]


@transactional
def _expired(*, group_id: int, members: Sequence[int], watch: liveness.Watch) -> int:
    """Drops those of `members` that are still silent, judged again under the group's lock; how many."""
    try:
        group = group_by_id(group_id)
    except NotFound:
        return 0
    now = database_now()
    rows = Heartbeat.objects.select_for_update().filter(pk__in=sorted(members), membership__group=group)
    dead = [
        row.pk
        for row in rows.order_by("pk")
        if liveness.overdue(last_seen=row.last_seen, now=now, session_timeout_ms=group.session_timeout_ms)
    ]
    if dead:
        _drop(group, dead)
        log.warning("group %s: %d members expired", group.name, len(dead))
    return len(dead)


@gated
def check_owned(*, consumer: ConsumerId, queues: Sequence[int]) -> dict[int, int]:
    """Queue → epoch for those of `queues` that the member is to own now; others are left out.

    Raises Gone(expired | replaced), MetadataUnavailable.
    """
    with reachable():
        texts = ConsumerGroupConsumer.objects.filter(pk=consumer.member_id).values_list(
            "consumer_id", flat=True
        )
        text = texts.first()
        if text is None:
            raise expired()
        if text != consumer.text:
            raise replaced()
        rows = QueueOffset.objects.filter(
            group=consumer.group_id,
            owner=consumer.member_id,
            owner__consumer_id=consumer.text,
            target=F("owner"),
            queue_id__in=sorted(set(queues)),
        )
        return dict(rows.values_list("queue_id", "epoch"))


@gated
def adopt_node_epoch(*, group_id: int, queue: int, epoch: int) -> int:
    """Raises the queue's epoch above `epoch`, which its node was found at; the epoch that counts now.

    Metadata lost its tail, or a reset raised the node's epoch: the owner hears of the new one at its next
    heartbeat. Nothing changes if metadata is ahead already. Raises NotFound(subscription_not_found).
    """
    return _adopted(group_id=group_id, queue=queue, epoch=epoch)


@transactional
def _adopted(*, group_id: int, queue: int, epoch: int) -> int:
    group = group_by_id(group_id)
    row = QueueOffset.objects.filter(group=group, queue=queue).first()
    if row is None:
        raise NotFound("The group does not read this queue.", code=Code.SUBSCRIPTION_NOT_FOUND)
    if row.epoch > epoch:
        return row.epoch
    QueueOffset.objects.filter(pk=row.pk, epoch=row.epoch).update(epoch=epoch + 1)
    rebalance.next_generation(group_id)
    changed("group", group_id)
    log.warning(
        "group %s queue %d: the node is at epoch %d, metadata was at %d", group.name, queue, epoch, row.epoch
    )
    return epoch + 1
