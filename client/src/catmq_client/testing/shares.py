"""Share groups of the FakeBroker: any number of members, which lease runs by the broker's
clock.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from catmq_client.errors import Conflict, FieldError, NotFound
from catmq_client.sharing.runs import to_ranges
from catmq_client.testing.groups import FakeGroup, Position
from catmq_client.testing.topics import FakeClock, FakeQueue

# From this delivery on, messages are delivered alone.
SUSPECT_FROM = 3
SETTINGS = {"lease_ms": 30_000, "run_messages": 10, "max_deliveries": 5}
_grants = itertools.count(1)


@dataclass(slots=True, eq=False)
class FakeRun:
    """Offsets `first` to `end` (not included) of a queue. Not leased while `owner` is ""."""

    queue: FakeQueue
    first: int
    end: int
    owner: str = ""
    grant: str = ""
    lease_until_ms: int = 0
    deliveries: int = 0
    # False while the last lease is not in `deliveries`, because its member has not begun.
    is_counted: bool = True
    done: set[int] = field(default_factory=set)

    @property
    def left(self) -> list[int]:
        return [offset for offset in range(self.first, self.end) if offset not in self.done]

    @property
    def delivery(self) -> int:
        """The number of deliveries, including the last lease."""
        return self.deliveries + (not self.is_counted)

    def lease_to(self, owner: str, *, until_ms: int, is_counted: bool = True) -> None:
        """Lease the run to a member under a new grant."""
        self.owner, self.lease_until_ms, self.is_counted = owner, until_ms, is_counted
        self.grant, self.deliveries = f"g{next(_grants)}", self.deliveries + is_counted


class FakeShareGroup(FakeGroup):
    """A share group. Every call is made under the broker's lock."""

    mode = "share"
    owns_queues = False
    # Declared again, because pyright reads no type from an augmented assignment.
    generation: int

    def __init__(
        self, name: str, *, clock: FakeClock, session_timeout_ms: int, **settings: int
    ) -> None:
        super().__init__(name, clock=clock, session_timeout_ms=session_timeout_ms)
        self.share_settings: dict[str, int] = {**SETTINGS, **settings}
        self.runs: list[FakeRun] = []
        self._next_offsets: dict[int, int] = {}
        self._granted: dict[str, FakeRun] = {}  # by each grant that ever was
        self._rotation = 0

    def leave(self, consumer_id: str, reason: str = "expired") -> None:
        if consumer_id in self._members:
            super().leave(consumer_id, reason)
            self.generation += 1
            for run in self.runs:
                if run.owner == consumer_id:
                    run.lease_until_ms = self.clock.now_ms()

    def holds(self, consumer_id: str, message: dict[str, Any]) -> bool:
        run = self._run_of_grant(message.get("grant", ""))
        if run is None or run.queue.id != message["queue"]:
            return False
        return message["offset"] in run.left

    def take(self, consumer_id: str, body: dict[str, Any]) -> list[dict[str, Any]]:
        """Lease runs of a single queue. Return them as a pull answers them."""
        self._check(consumer_id)
        limit, views = body.get("max_messages", 500), list[dict[str, Any]]()
        if body.get("recover"):
            # The answer to an earlier pull was lost: its runs are leased, but not held by
            # the member.
            held = {held_run["grant"] for held_run in body.get("holding", ())}
            views = [
                {**self._view(run), "recovered": True}
                for run in self.runs
                if run.owner == consumer_id and run.grant not in held
            ]
        for position in () if views else self._readable(body.get("topics") or ()):
            due_runs = [*self._due(position.queue, limit)]
            runs = due_runs or [*self._new(position.queue, limit)]
            # A first lease counts at once, unless the message would be dead without a
            # second lease.
            counts_later = bool(due_runs) or self.share_settings["max_deliveries"] == 1
            is_counted = not (body.get("count_begun") and counts_later)
            until_ms = self.clock.now_ms() + self.share_settings["lease_ms"]
            settings = self.filter_of(position.queue)
            for run in runs:
                run.lease_to(consumer_id, until_ms=until_ms, is_counted=is_counted)
                self._granted[run.grant] = run
                run.done |= {
                    message.offset
                    for message in position.queue.between(run.first, run.end - run.first)
                    if not settings.takes(message.tag, message.headers)
                }
            views = [self._view(run) for run in runs if run.left]
            self.settle()
            if views:
                return views
        return views

    def done(self, report: dict[str, Any]) -> dict[str, Any]:
        """Apply a report on a run. Return its state."""
        run_fields = {name: report[name] for name in ("queue", "first", "grant")}
        run, now_ms = self._run_of_grant(report["grant"]), self.clock.now_ms()
        if run is None:
            is_lost = self._granted.get(report["grant"]) in self.runs
            return {**run_fields, "state": "lost" if is_lost else "gone"}
        finished = {
            offset
            for first, end in report.get("finished", ())
            for offset in range(first, end)
        }
        unseen = set(report.get("unseen", ())) - finished
        released = (set(report.get("release", ())) | unseen) - finished
        outside = (finished | released) - set(range(run.first, run.end))
        is_empty = any(first >= end for first, end in report.get("finished", ()))
        begun, delivery = report.get("begun"), report.get("delivery", 0) or run.deliveries
        is_other_delivery = not run.deliveries <= delivery <= run.deliveries + 1
        if is_other_delivery or (begun is not None and not report.get("delivery")):
            return {
                **run_fields,
                "state": "invalid",
                "detail": f"delivery: {delivery} is not the number that came with this run",
            }
        is_same_place = (run.queue.id, run.first) == (report["queue"], report["first"])
        if outside or is_empty or not is_same_place:
            return {
                **run_fields,
                "state": "invalid",
                "detail": f"offsets {run.first} to {run.end - 1} of queue {run.queue.id} are "
                "leased under this grant",
            }
        run.done |= set(run.left) if report.get("all") else finished
        if begun is not None:
            run.deliveries, run.is_counted = delivery - (not begun), begun
        fields = {}
        # A run that is given back as a whole stays together for the next member.
        if released == set(range(run.first, run.end)) and not unseen:
            run.owner = run.grant = ""
            run.lease_until_ms, run.deliveries = now_ms, delivery
        else:
            for offset in released.intersection(run.left):
                self._split_off(run, offset).deliveries = max(
                    0, delivery - (offset in unseen)
                )
            if report.get("renew"):
                fields = {"lease_ms": self.share_settings["lease_ms"]}
                run.lease_until_ms = now_ms + fields["lease_ms"]
        self.settle()
        return {**run_fields, "state": "ok", **fields}

    def free(self, queue: int, first: int) -> int:
        """End the leases of the runs that begin at an offset. Return their number."""
        runs = [run for run in self.runs if (run.queue.id, run.first) == (queue, first)]
        for run in runs:
            run.lease_until_ms = min(run.lease_until_ms, self.clock.now_ms())
        return len(runs)

    def operator_view(self) -> dict[str, Any]:
        """Return the runs as operators see them."""
        runs = sorted(self.runs, key=lambda run: (run.queue.id, run.first, run.end))
        return {
            "runs": [
                {
                    "topic": run.queue.topic,
                    "queue": run.queue.id,
                    "number": run.queue.number,
                    "first": run.first,
                    "end": run.end,
                    "owner": self._members.get(run.owner, (None, None))[0],
                    "deliveries": run.deliveries,
                    "messages": len(run.left),
                    "finished": run.end - run.first - len(run.left),
                    "lease_left_ms": run.lease_until_ms - self.clock.now_ms(),
                }
                for run in runs
            ],
            "away": [],
        }

    def take_exhausted(self) -> Iterator[tuple[Position, int, int]]:
        """Remove messages leased too often. Yield position, offset and deliveries of each."""
        max_deliveries, now_ms = self.share_settings["max_deliveries"], self.clock.now_ms()
        for run in [*self.runs]:
            if (
                max_deliveries
                and run.deliveries >= max_deliveries
                and run.lease_until_ms <= now_ms
            ):
                for offset in run.left:
                    # The caller makes each a dead letter, as a broker does when its leases
                    # are used up.
                    yield self.positions[run.queue.id], offset, run.deliveries
                self.runs.remove(run)
        self.settle()

    def settle(self) -> None:
        """Remove finished runs. The committed offset is the lowest unfinished offset."""
        self.runs = [run for run in self.runs if run.left]
        for queue, position in self.positions.items():
            # Offsets from `_next_offsets` on have never been leased.
            position.committed = min(
                [
                    self._next_offsets.get(queue, position.committed),
                    *(run.left[0] for run in self.runs if run.queue.id == queue),
                ]
            )

    def _readable(self, topics: Iterable[str]) -> list[Position]:
        """Return positions in order of preference: by topic, and the queues of a topic in
        turn.
        """
        requested = [*topics]
        subscribed = {
            position.queue.subscribed_topic: None for position in self.positions.values()
        }
        missing = [topic for topic in requested if topic not in subscribed]
        if missing:
            raise NotFound(
                f"group {self.name} does not read {missing[0]}",
                code="subscription_not_found",
                status=404,
            )
        self._rotation += 1
        positions_in_order = list[Position]()
        for topic in requested or subscribed:
            topic_positions = [
                position
                for position in self.positions.values()
                if position.queue.subscribed_topic == topic
            ]
            positions_in_order += [
                topic_positions[(index + self._rotation) % len(topic_positions)]
                for index in range(len(topic_positions))
            ]
        return positions_in_order

    def _due(self, queue: FakeQueue, limit: int) -> Iterator[FakeRun]:
        """Yield runs whose lease has ended, the lowest first.

        A message that was delivered too often is yielded alone.
        """
        now_ms = self.clock.now_ms()
        max_messages = min(limit, self.share_settings["run_messages"])
        due_runs = [
            run for run in self.runs if run.queue is queue and run.lease_until_ms <= now_ms
        ]
        message_count = 0
        for run in sorted(due_runs, key=lambda run: (run.first, run.end)):
            alone = self._is_delivered_alone(run.deliveries + 1)
            if message_count and (alone or message_count >= max_messages):
                return
            message_count += len(run.left)
            is_split = alone and run.end - run.first > 1
            yield self._split_off(run, run.left[0]) if is_split else run
            if alone:
                return

    def _new(self, queue: FakeQueue, limit: int) -> Iterator[FakeRun]:
        """Yield new runs, together a fair share of the messages that were never leased."""
        first = max(
            queue.low, self._next_offsets.get(queue.id, self.positions[queue.id].committed)
        )
        visible_until_ms = self.clock.now_ms() - self.filter_of(queue).delay_s * 1000
        end_of_visible = next(
            (
                message.offset
                for message in queue.between(first, queue.head - first)
                if message.stored_at_ms > visible_until_ms
            ),
            queue.head,
        )
        backlog = end_of_visible - first
        # Rounded up, so that the last message is leased, too.
        fair_share = max(1, -(-backlog // max(1, len(self._members))))
        self._next_offsets[queue.id] = end = first + min(backlog, fair_share, limit)
        run_size = 1 if self._is_delivered_alone(1) else self.share_settings["run_messages"]
        for start in range(first, end, run_size):
            self.runs.append(FakeRun(queue, start, min(end, start + run_size)))
            yield self.runs[-1]

    def _is_delivered_alone(self, delivery: int) -> bool:
        return delivery >= min(
            SUSPECT_FROM, self.share_settings["max_deliveries"] or SUSPECT_FROM
        )

    def _split_off(self, run: FakeRun, offset: int) -> FakeRun:
        """Move an offset of a run to a run of its own, which is not leased."""
        run.done.add(offset)
        free = FakeRun(run.queue, offset, offset + 1, deliveries=run.deliveries)
        free.lease_until_ms = self.clock.now_ms()
        self.runs.append(free)
        return free

    def _view(self, run: FakeRun) -> dict[str, Any]:
        left, queue = set(run.left), run.queue
        messages = queue.between(run.first, run.end - run.first)
        return {
            **queue.identity(),
            "first": run.first,
            "end": run.end,
            "grant": run.grant,
            "deliveries": run.delivery,
            "lease_ms": self.share_settings["lease_ms"],
            "messages": [message.view() for message in messages if message.offset in left],
            "skipped": to_ranges(set(range(run.first, run.end)) - left),
            **({} if run.is_counted else {"uncounted": True}),
        }

    def _run_of_grant(self, grant: str) -> FakeRun | None:
        run = self._granted.get(grant)
        return run if run in self.runs and run is not None and run.grant == grant else None

    def _check_settings(self, settings: Mapping[str, Any]) -> None:
        group_settings: dict[str, Any] = {
            **self.share_settings,
            "session_timeout_ms": self.session_timeout_ms,
            "mode": self.mode,
        }
        conflicts = {
            name: value
            for name, value in group_settings.items()
            if settings.get(name) not in (None, value)
        }
        if conflicts:
            values = ", ".join(f"{name} {value}" for name, value in conflicts.items())
            raise Conflict(
                f"group {self.name} has {values}",
                code="group_settings_differ",
                errors=[
                    FieldError(name, f"is {value}") for name, value in conflicts.items()
                ],
                status=409,
            )
