"""Share groups of the FakeBroker: many members, and runs leased to them by the broker's
clock.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from catmq_client.errors import Conflict, FieldError, Gone, NotFound
from catmq_client.reading.subscription_settings import Settings
from catmq_client.sharing.runs import to_ranges
from catmq_client.testing.groups import FakeGroup, Position, new_id
from catmq_client.testing.topics import FakeClock, FakeQueue

# From this delivery on, messages are delivered one by one.
ALONE_FROM = 3
SETTINGS = {"lease_ms": 30_000, "run_messages": 10, "max_deliveries": 5}
_grants = itertools.count(1)


@dataclass(slots=True, eq=False)
class FakeRun:
    """Offsets `first` to `end` (not included) of a queue, leased to a member; owner "":
    nobody.
    """

    queue: FakeQueue
    first: int
    end: int
    owner: str = ""
    grant: str = ""
    lease_until_ms: int = 0
    deliveries: int = 0
    # Whether the last lease is in `deliveries`; else it is once its member reports that it
    # began.
    is_counted: bool = True
    done: set[int] = field(default_factory=set)

    @property
    def left(self) -> list[int]:
        """Return the offsets that are not finished."""
        return [offset for offset in range(self.first, self.end) if offset not in self.done]

    @property
    def delivery(self) -> int:
        """Return the number of deliveries with the last lease, once it counts."""
        return self.deliveries + (not self.is_counted)

    def leased_to(self, owner: str, *, until_ms: int, is_counted: bool = True) -> None:
        self.owner, self.lease_until_ms, self.is_counted = owner, until_ms, is_counted
        self.grant, self.deliveries = f"g{next(_grants)}", self.deliveries + is_counted


class FakeShareGroup(FakeGroup):
    """A share group; every call is made under the broker's lock."""

    mode = "share"

    def __init__(
        self, name: str, *, clock: FakeClock, session_timeout_ms: int, **settings: int
    ) -> None:
        super().__init__(name, clock=clock, session_timeout_ms=session_timeout_ms)
        self.share_settings = {**SETTINGS, **settings}
        self.runs: list[FakeRun] = []
        # Consumer id → name and incarnation.
        self._members: dict[str, tuple[str, str]] = {}
        self._next: dict[int, int] = {}
        self._granted: dict[str, FakeRun] = {}  # by every grant there was
        self._turn = 0

    def join(self, name: str, incarnation: str, **asked: Any) -> str:
        """Register a member, or its next incarnation; return its consumer id."""
        known: dict[str, Any] = {
            **self.share_settings,
            "session_timeout_ms": self.session_timeout_ms,
        }
        known["mode"] = self.mode
        wrong = [one for one in known if asked.get(one) not in (None, known[one])]
        if wrong:
            detail = (
                f"group {self.name} has {', '.join(f'{one} {known[one]}' for one in wrong)}"
            )
            errors = [FieldError(one, f"is {known[one]}") for one in wrong]
            raise Conflict(detail, code="group_settings_differ", errors=errors, status=409)
        for consumer_id, member in [*self._members.items()]:
            if member == (name, incarnation):
                return consumer_id
            if member[0] == name:
                self.leave(consumer_id, "replaced")
        consumer_id = new_id(name)
        self._members[consumer_id] = name, incarnation
        self.generation += 1
        return consumer_id

    def leave(self, consumer_id: str, why: str = "expired") -> None:
        if self._members.pop(consumer_id, None) is not None:
            self._gone[consumer_id] = why
            self.generation += 1
            for run in self.runs:
                if run.owner == consumer_id:
                    run.lease_until_ms = self.clock.now_ms()

    def has_had(self, consumer_id: str) -> bool:
        return consumer_id in self._members or consumer_id in self._gone

    def heartbeat(
        self, consumer_id: str, generation: int, owned: list[dict[str, int]]
    ) -> dict[str, Any]:
        """Return no queues, and how the messages of each topic come."""
        self._check(consumer_id)
        told = self.subscriptions(self.positions.values())
        return {
            "generation": self.generation,
            "assigned": [],
            "revoked": [],
            "subscriptions": told,
        }

    def holds(self, consumer_id: str, message: dict[str, Any]) -> bool:
        run = self._of_grant(message.get("grant", ""))
        return (
            run is not None
            and run.queue.id == message["queue"]
            and message["offset"] in run.left
        )

    def acquire(self, consumer_id: str, queue: int, epoch: int) -> dict[str, Any]:
        raise self._shared()

    def commit(
        self, consumer_id: str, queue: int, epoch: int, offset: int
    ) -> dict[str, Any]:
        raise self._shared()

    def read(
        self, consumer_id: str, asked: dict[str, int], *, limit: int
    ) -> dict[str, Any]:
        raise self._shared()

    def take(self, consumer_id: str, body: dict[str, Any]) -> list[dict[str, Any]]:
        """Lease runs of one queue; return them as an answer has them."""
        self._check(consumer_id)
        limit, found = body.get("max_messages", 500), list[dict[str, Any]]()
        if body.get("recover"):
            held = {one["grant"] for one in body.get("holding", ())}
            mine = [
                run
                for run in self.runs
                if run.owner == consumer_id and run.grant not in held
            ]
            found = [{**self._view(run), "recovered": True} for run in mine]
        for position in () if found else self._readable(body.get("topics") or ()):
            due = [*self._due(position.queue, limit)]
            runs = due or [*self._new(position.queue, limit)]
            # A first lease counts at once, unless the message would be dead without it.
            counts_later = bool(due) or self.share_settings["max_deliveries"] == 1
            is_counted = not (body.get("count_begun") and counts_later)
            until_ms = self.clock.now_ms() + self.share_settings["lease_ms"]
            for run in runs:
                run.leased_to(consumer_id, until_ms=until_ms, is_counted=is_counted)
                self._granted[run.grant] = run
            found = [self._view(run) for run in runs if self._keeps(run)]
            self.settle()
            if found:
                return found
        return found

    def done(self, one: dict[str, Any]) -> dict[str, Any]:
        """Record a report; return its state."""
        place = {name: one[name] for name in ("queue", "first", "grant")}
        run, now_ms = self._of_grant(one["grant"]), self.clock.now_ms()
        if run is None:
            return {
                **place,
                "state": "lost" if self._granted.get(one["grant"]) in self.runs else "gone",
            }
        finished = {
            offset for first, end in one.get("finished", ()) for offset in range(first, end)
        }
        unseen = set(one.get("unseen", ())) - finished
        released = (set(one.get("release", ())) | unseen) - finished
        outside = (finished | released) - set(range(run.first, run.end))
        empty = any(first >= end for first, end in one.get("finished", ()))
        begun, delivery = one.get("begun"), one.get("delivery", 0) or run.deliveries
        is_other = not run.deliveries <= delivery <= run.deliveries + 1
        if is_other or (begun is not None and not one.get("delivery")):
            detail = f"delivery: {delivery} is not the number that came with this run"
            return {**place, "state": "invalid", "detail": detail}
        if outside or empty or (run.queue.id, run.first) != (one["queue"], one["first"]):
            detail = (
                f"offsets {run.first} to {run.end - 1} of queue {run.queue.id} are "
                "leased under this grant"
            )
            return {**place, "state": "invalid", "detail": detail}
        run.done |= set(run.left) if one.get("all") else finished
        if begun is not None:
            run.deliveries, run.is_counted = delivery - (not begun), begun
        more = {}
        if released == set(range(run.first, run.end)) and not unseen:
            run.owner, run.grant, run.lease_until_ms, run.deliveries = (
                "",
                "",
                now_ms,
                delivery,
            )
        else:
            for offset in released.intersection(run.left):
                self._alone(run, offset).deliveries = max(0, delivery - (offset in unseen))
            if one.get("renew"):
                more = {"lease_ms": self.share_settings["lease_ms"]}
                run.lease_until_ms = now_ms + more["lease_ms"]
        self.settle()
        return {**place, "state": "ok", **more}

    def free(self, queue: int, first: int) -> int:
        """End the leases of the runs that begin at an offset; return how many there were."""
        now_ms = self.clock.now_ms()
        runs = [run for run in self.runs if (run.queue.id, run.first) == (queue, first)]
        for run in runs:
            run.lease_until_ms = min(run.lease_until_ms, now_ms)
        return len(runs)

    def listed(self, run: FakeRun) -> dict[str, Any]:
        """Return a run as operators see it."""
        name, _ = self._members.get(run.owner, (None, None))
        return {
            "topic": run.queue.topic,
            "queue": run.queue.id,
            "number": run.queue.number,
            "first": run.first,
            "end": run.end,
            "owner": name,
            "deliveries": run.deliveries,
            "messages": len(run.left),
            "finished": run.end - run.first - len(run.left),
            "lease_left_ms": run.lease_until_ms - self.clock.now_ms(),
        }

    def worn_out(self) -> Iterator[tuple[Position, int, int]]:
        """Take out the messages that were leased too often in vain: position, offset,
        deliveries.
        """
        most, now_ms = self.share_settings["max_deliveries"], self.clock.now_ms()
        for run in [*self.runs]:
            if most and run.deliveries >= most and run.lease_until_ms <= now_ms:
                for offset in run.left:
                    yield self.positions[run.queue.id], offset, run.deliveries
                self.runs.remove(run)
        self.settle()

    def lease_ends_ms(self) -> list[int]:
        return [run.lease_until_ms for run in self.runs]

    def settle(self) -> None:
        """Forget the runs that are done; the committed offset is the lowest that is not."""
        for run in [run for run in self.runs if not run.left]:
            self.runs.remove(run)
        for queue, position in self.positions.items():
            ends = [self._next.get(queue, position.committed)]
            position.committed = min(
                [*ends, *(run.left[0] for run in self.runs if run.queue.id == queue)]
            )

    def _readable(self, topics: Iterable[str]) -> list[Position]:
        """Return the positions by preference of their topics, those of a topic in turn."""
        wanted = [*topics]
        known = {self._topic_of(position): None for position in self.positions.values()}
        missing = [topic for topic in wanted if topic not in known]
        if missing:
            detail = f"group {self.name} does not read {missing[0]}"
            raise NotFound(detail, code="subscription_not_found", status=404)
        self._turn += 1
        found = list[Position]()
        for topic in wanted or known:
            mine = [one for one in self.positions.values() if self._topic_of(one) == topic]
            found += [mine[(n + self._turn) % len(mine)] for n in range(len(mine))]
        return found

    def _topic_of(self, position: Position) -> str:
        return position.queue.origin_topic or position.queue.topic

    def _due(self, queue: FakeQueue, limit: int) -> Iterator[FakeRun]:
        """Yield runs whose lease has ended, the lowest first; messages that came too often
        alone.
        """
        now_ms, most = self.clock.now_ms(), min(limit, self.share_settings["run_messages"])
        due = [
            run for run in self.runs if run.queue is queue and run.lease_until_ms <= now_ms
        ]
        taken = 0
        for run in sorted(due, key=lambda one: (one.first, one.end)):
            alone = self._goes_alone(run.deliveries + 1)
            if taken and (alone or taken >= most):
                return
            taken += len(run.left)
            yield (
                self._alone(run, run.left[0]) if alone and run.end - run.first > 1 else run
            )
            if alone:
                return

    def _new(self, queue: FakeQueue, limit: int) -> Iterator[FakeRun]:
        """Yield runs of messages that nobody had yet: together a fair part of them."""
        first = max(queue.low, self._next.get(queue.id, self.positions[queue.id].committed))
        backlog = self._ripe_end(queue, first) - first
        fair = max(1, -(-backlog // max(1, len(self._members))))
        self._next[queue.id] = last = first + min(backlog, fair, limit)
        most = 1 if self._goes_alone(1) else self.share_settings["run_messages"]
        for start in range(first, last, most):
            self.runs.append(FakeRun(queue, start, min(last, start + most)))
            yield self.runs[-1]

    def _goes_alone(self, delivery: int) -> bool:
        return delivery >= min(
            ALONE_FROM, self.share_settings["max_deliveries"] or ALONE_FROM
        )

    def _alone(self, run: FakeRun, offset: int) -> FakeRun:
        """Give an offset of a run a run of its own, that nobody has."""
        run.done.add(offset)
        free = FakeRun(run.queue, offset, offset + 1, deliveries=run.deliveries)
        free.lease_until_ms = self.clock.now_ms()
        self.runs.append(free)
        return self.runs[-1]

    def _ripe_end(self, queue: FakeQueue, first: int) -> int:
        ripe_ms = self.clock.now_ms() - (
            0 if queue.origin_topic else self.settings(queue.topic).delay_s * 1000
        )
        unripe = (
            one.offset
            for one in queue.between(first, queue.head - first)
            if one.stored_at_ms > ripe_ms
        )
        return next(unripe, queue.head)

    def _keeps(self, run: FakeRun) -> bool:
        """Finish what the filter leaves out; return True if anything is left."""
        settings = Settings() if run.queue.origin_topic else self.settings(run.queue.topic)
        messages = run.queue.between(run.first, run.end - run.first)
        run.done |= {
            one.offset for one in messages if not settings.takes(one.tag, one.headers)
        }
        return bool(run.left)

    def _view(self, run: FakeRun) -> dict[str, Any]:
        left, queue = set(run.left), run.queue
        messages = queue.between(run.first, run.end - run.first)
        origin = {} if queue.origin_topic is None else {"origin_topic": queue.origin_topic}
        return {
            "topic": queue.topic,
            "queue": queue.id,
            "first": run.first,
            "end": run.end,
            "grant": run.grant,
            "deliveries": run.delivery,
            "lease_ms": self.share_settings["lease_ms"],
            "messages": [message.view() for message in messages if message.offset in left],
            "skipped": to_ranges(set(range(run.first, run.end)) - left),
            **origin,
            **({} if run.is_counted else {"uncounted": True}),
        }

    def _shared(self) -> Conflict:
        detail = (
            f"group {self.name} is a share group: its members lease messages, and own "
            "no queues"
        )
        return Conflict(detail, code="group_settings_differ", status=409)

    def _of_grant(self, grant: str) -> FakeRun | None:
        run = self._granted.get(grant)
        return run if run in self.runs and run is not None and run.grant == grant else None

    def _check(self, consumer_id: str) -> None:
        if consumer_id not in self._members:
            why = self._gone.get(consumer_id, "expired")
            raise Gone(f"{consumer_id} is {why}", code=why, status=410)
