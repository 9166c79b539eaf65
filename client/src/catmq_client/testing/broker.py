"""A broker in memory; see FakeBroker."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from catmq_client.callables import check_callable
from catmq_client.errors import (
    CatmqError,
    Conflict,
    ConnectFailed,
    InvalidRequest,
    NotFound,
)
from catmq_client.http import wire
from catmq_client.reading.subscription_settings import Settings
from catmq_client.testing.failures import FailedMessage, FakeFailures
from catmq_client.testing.groups import FakeGroup
from catmq_client.testing.shares import SETTINGS, FakeRun, FakeShareGroup
from catmq_client.testing.topics import (
    FakeClock,
    FakeTopic,
    FakeTopics,
    StoredMessage,
    unsupported,
)

# How often a pull looks whether a subscription's delay is over, s.
DELAY_STEP_S = 0.02
# States of a pulled queue that are no news: the pull waits on.
_WAITING = ("ok", "stopped", "unavailable")


@dataclass(frozen=True, slots=True)
class Seen:
    """A request that the broker got."""

    method: str
    path: str
    body: dict[str, Any]


@dataclass(slots=True)
class _Fault:
    pattern: re.Pattern[str]
    error: CatmqError
    after: bool
    left: int


class FakeBroker:
    """A Transport that answers from memory as a broker would, through real JSON or
    MessagePack.

    Topics are made with `create_topic`; groups when a consumer names topics, or with
    `subscribe`; a group has
    one member at a time, a share group any number. `fail` plants errors, before or after
    the request was carried out. What it does not do raises NotBuilt. Safe to share between
    threads; a pull waits.
    """

    def __init__(
        self, *, codec: wire.Codec | None = None, session_timeout_ms: int = 15_000
    ) -> None:
        """`codec` carries requests and answers there and back, as HTTP would (default:
        JSON).
        """
        self.clock = FakeClock()
        self.topics = FakeTopics(self.clock)
        self.groups: dict[str, Any] = {}
        self.failures = FakeFailures(self.topics)
        self.requests: list[Seen] = []
        self.session_timeout_ms = session_timeout_ms
        self._codec = codec or wire.JsonCodec()
        self._faults: list[_Fault] = []
        self._cut_off: set[str] = set()
        # A pull waits on it; everything that changes what a pull would answer notifies.
        self._changed = threading.Condition()

    def create_topic(self, name: str, *, queues: int = 4) -> FakeTopic:
        """Create a topic. It replaces a topic of the same name."""
        with self._changed:
            return self.topics.create(name, queues=queues)

    def subscribe(
        self, group: str, topic: str, *, start: str = "earliest", **made: Any
    ) -> FakeGroup:
        """Let a group read a topic from its start ("earliest") or end ("latest").

        `made` are settings of a group that is new, such as mode="share", lease_ms=5_000.
        """
        with self._changed:
            found = self.ensure_group(group, made)
            found.subscribe(self.topics.find(topic).queues, start=start)
            self._changed.notify_all()
            return found

    def configure(self, group: str, topic: str, **settings: Any) -> None:
        """Change settings of a subscription, as `catmq subscription set` does.

        Names and units: catmq_client.reading.subscription_settings.Settings; tags=("new",
        "paid"), headers={"region": ("eu", "us")}.
        """
        Settings.from_answer(settings)
        self.change(lambda: self.find_group(group).configure(topic, settings))

    def advance(self, seconds: float) -> None:
        """Advance the broker's clock. Retries and delayed messages that are due then are
        delivered.
        """
        self.change(lambda: self.clock.advance(seconds))

    def messages(self, topic: str) -> list[StoredMessage]:
        """Return all messages of a topic, queue by queue."""
        with self._changed:
            self.topics.move_due()
            return [
                message
                for queue in self.topics.find(topic).queues
                for message in queue.messages
            ]

    def committed(self, group: str) -> dict[int, int]:
        """Return the committed offset of each queue of a group."""
        with self._changed:
            positions = self.find_group(group).positions
            return {queue: position.committed for queue, position in positions.items()}

    def runs(self, group: str) -> list[FakeRun]:
        """Return the runs of a share group: messages that are leased, or that wait to be
        delivered again.
        """
        with self._changed:
            return [*self._share_group(self.find_group(group)).runs]

    def waiting(self, group: str) -> list[FailedMessage]:
        """Return the messages of a group that failed and wait for their next retry."""
        with self._changed:
            return [one for one in self.failures.waiting if one.group == group]

    def dead(self, group: str) -> list[FailedMessage]:
        """Return the dead letters of a group."""
        with self._changed:
            return [one for one in self.failures.dead if one.group == group]

    def fail(
        self, request: str, error: CatmqError, *, after: bool = False, times: int = 1
    ) -> None:
        """Make the next `times` requests that match the pattern `METHOD path` raise
        `error`.

        after=True: the request is carried out first, as if its response was lost.
        """
        with self._changed:
            self._faults.append(_Fault(re.compile(request), error, after, times))

    def cut_off(self, name: str) -> None:
        """Let no request of the member of this name through, as if its process had died;
        `heal` ends that.
        """
        self.change(lambda: self._cut_off.add(name))

    def heal(self) -> None:
        """Remove all planted errors."""
        with self._changed:
            self._faults.clear()
            self._cut_off.clear()

    def change(self, what: Callable[[], object]) -> None:
        """Carry out a change of the broker's insides and wake the waiting pulls."""
        check_callable("what", what)
        with self._changed:
            what()
            self._changed.notify_all()

    def seen(self, request: str) -> list[Seen]:
        """Return the requests so far that match the pattern `METHOD path`."""
        pattern = re.compile(request)
        with self._changed:
            return [
                seen
                for seen in self.requests
                if pattern.search(f"{seen.method} {seen.path}")
            ]

    def wait_until(self, true: Callable[[], bool], *, timeout_s: float = 10.0) -> bool:
        """Return True if `true()` became true in time; looked at whenever a request comes
        or ends.
        """
        check_callable("true", true)
        with self._changed:
            return self._changed.wait_for(true, timeout_s)

    def request(
        self, method: str, path: str, *, body: Mapping[str, Any] | None = None, **_more: Any
    ) -> dict[str, Any]:
        """See Transport."""
        decoded: dict[str, Any] = (
            {}
            if body is None
            else self._codec.decode(wire.encode_request(self._codec, body))
        )
        with self._changed:
            self.requests.append(Seen(method, path, decoded))
            self._changed.notify_all()
            self._raise_fault(method, path, after=False)
            self._raise_cut(path, decoded)
            try:
                answer = self._answer(method, path, decoded)
            finally:
                self._changed.notify_all()
            self._raise_fault(method, path, after=True)
        for part in (answer, *answer.get("queues", ()), *answer.get("runs", ())):
            if isinstance(part.get("messages"), list):
                sent = self._codec.encode({"messages": part["messages"]})
                part["messages"] = self._codec.decode(sent)["messages"]
        return answer

    def find_group(self, name: str) -> FakeGroup:
        """Return a group, or raise NotFound naming the command that makes it."""
        if name not in self.groups:
            detail = f"there is no group {name}; make it with: catmq group create {name}"
            raise NotFound(detail, code="group_not_found", status=404)
        found: FakeGroup = self.groups[name]
        return found

    def ensure_group(self, name: str, body: dict[str, Any]) -> FakeGroup:
        """Return a group; made with the settings of a registration if it is new."""
        timeout_ms = body.get("session_timeout_ms") or self.session_timeout_ms
        kind = FakeShareGroup if body.get("mode") == "share" else FakeGroup
        if name not in self.groups:
            more = {one: body[one] for one in SETTINGS if body.get(one) is not None}
            if more and kind is FakeGroup:
                raise InvalidRequest(f"{', '.join(more)}: only for mode share", status=422)
            self.groups[name] = kind(
                name, clock=self.clock, session_timeout_ms=timeout_ms, **more
            )
        return self.find_group(name)

    def _answer(self, method: str, path: str, body: dict[str, Any]) -> dict[str, Any]:
        for route, answered in _ROUTES.items():
            found = re.fullmatch(route, f"{method} {path.removeprefix('/api/v1/')}")
            if found:
                return answered(self, *map(unquote, found.groups()), body) or {}
        raise unsupported(f"{method} {path}")

    def _raise_fault(self, method: str, path: str, *, after: bool) -> None:
        # In the order planted: a later fault has its turn when the earlier ones are used
        # up.
        live = (
            f for f in self._faults if f.left > 0 and f.pattern.search(f"{method} {path}")
        )
        fault = next(live, None)
        if fault is not None and fault.after == after:
            fault.left -= 1
            raise fault.error

    def _raise_cut(self, path: str, body: dict[str, Any]) -> None:
        names = [
            name
            for name in self._cut_off
            if f"/consumers/{name}.k." in path or body.get("name") == name
        ]
        if names:
            raise ConnectFailed(f"{names[0]} is cut off")

    def _of_consumer(self, consumer_id: str) -> FakeGroup:
        for group in self.groups.values():
            if group.has_had(consumer_id):
                found: FakeGroup = group
                return found
        raise NotFound(
            f"{consumer_id} was never registered", code="consumer_not_found", status=404
        )

    def _create_group(self, body: dict[str, Any]) -> dict[str, Any]:
        if body["name"] in self.groups:
            raise Conflict(
                f"group {body['name']} exists already", code="already_exists", status=409
            )
        return {"name": self.ensure_group(body["name"], body).name}

    def _subscribe(self, group: str, body: dict[str, Any]) -> dict[str, Any]:
        topic, start = body["topic"], body["start"]
        if "start_at_ms" in body or "start_ago_ms" in body:
            raise unsupported("subscriptions from a time")
        if not self.find_group(group).subscribe(
            self.topics.find(topic).queues, start=start
        ):
            raise Conflict(
                f"group {group} reads {topic} already", code="already_exists", status=409
            )
        return {
            "group": group,
            "topic": topic,
            "state": "ready",
            "start": start,
            "start_at_ms": None,
            "stopped": False,
        }

    def _register(self, group: str, body: dict[str, Any]) -> dict[str, Any]:
        topics = [self.topics.find(topic) for topic in body.get("topics") or ()]
        found = self.ensure_group(group, body) if topics else self.find_group(group)
        asked = {
            name: body.get(name) for name in ("mode", "session_timeout_ms", "instance_id")
        }
        asked |= {name: body[name] for name in SETTINGS if name in body}
        consumer_id = found.join(
            body.get("instance_id") or body["name"], body["incarnation"], **asked
        )
        for topic in topics:
            found.subscribe(topic.queues, start="earliest")
        intervals = {"heartbeat_interval_ms": found.heartbeat_interval_ms}
        return {
            "consumer_id": consumer_id,
            "session_timeout_ms": found.session_timeout_ms,
            **intervals,
        }

    def _traces(self, consumer: str, body: dict[str, Any]) -> dict[str, Any]:
        """Take a report of handled messages, which nobody reads here."""
        self._of_consumer(consumer)
        return {}

    def _heartbeat(self, consumer: str, body: dict[str, Any]) -> dict[str, Any]:
        return self._of_consumer(consumer).heartbeat(
            consumer, body["generation"], body["owned"]
        )

    def _acquire(self, consumer: str, body: dict[str, Any]) -> dict[str, Any]:
        group = self._of_consumer(consumer)
        acquired = [group.acquire(consumer, q["queue"], q["epoch"]) for q in body["queues"]]
        return {"queues": acquired, "generation": group.generation}

    def _commit(self, consumer: str, body: dict[str, Any]) -> dict[str, Any]:
        group = self._of_consumer(consumer)
        asked = [(one["queue"], one["epoch"], one["offset"]) for one in body["offsets"]]
        return {
            "results": [group.commit(consumer, *one) for one in asked],
            "generation": group.generation,
        }

    def _report(self, consumer: str, body: dict[str, Any]) -> dict[str, Any]:
        return self.failures.report(self._of_consumer(consumer), consumer, body["messages"])

    def _pull(self, consumer: str, body: dict[str, Any]) -> dict[str, Any]:
        group = self._of_consumer(consumer)
        give_up_at = time.monotonic() + body["wait_ms"] / 1000
        while True:
            self.failures.move_due(group)
            self.topics.move_due()
            left, queues = body["max_messages"], []
            for asked in body["queues"]:
                queues.append(group.read(consumer, asked, limit=left))
                left -= len(queues[-1]["messages"])
            news = any(one["messages"] or one["state"] not in _WAITING for one in queues)
            changed = group.generation > body["generation"]
            wait_s = 0.0 if self.interrupted() else give_up_at - time.monotonic()
            if news or changed or wait_s <= 0:
                generation = max(group.generation, body["generation"])
                return {
                    "generation": generation,
                    "queues": queues,
                    "assignment_changed": changed,
                }
            self._changed.wait(min(wait_s, max(0.001, self._next_due_s(group))))

    def _share_group(self, group: FakeGroup) -> FakeShareGroup:
        if not isinstance(group, FakeShareGroup):
            detail = f"group {group.name} is no share group: its mode is {group.mode}"
            raise Conflict(detail, code="group_settings_differ", status=409)
        return group

    def _share(self, consumer: str, body: dict[str, Any]) -> dict[str, Any]:
        group = self._share_group(self._of_consumer(consumer))
        give_up_at = time.monotonic() + body.get("wait_ms", 0) / 1000
        done = [group.done(one) for one in body.get("done", ())]
        while True:
            self.failures.end_leases(group)
            self.failures.move_due(group)
            self.topics.move_due()
            self._raise_cut(f"/consumers/{consumer}", body)
            runs = group.take(consumer, body)
            wait_s = 0.0 if self.interrupted() else give_up_at - time.monotonic()
            if runs or wait_s <= 0:
                return {
                    "generation": group.generation,
                    "runs": runs,
                    "done": done,
                    "queues": [],
                }
            lease_ends_s = self.clock.seconds_to(group.lease_ends_ms())
            self._changed.wait(
                min(wait_s, max(0.001, min(lease_ends_s, self._next_due_s(group))))
            )

    def _share_done(self, consumer: str, body: dict[str, Any]) -> dict[str, Any]:
        group = self._share_group(self._of_consumer(consumer))
        return {
            "generation": group.generation,
            "done": [group.done(one) for one in body["done"]],
        }

    def _share_runs(self, group: str) -> dict[str, Any]:
        found = self._share_group(self.find_group(group))
        runs = sorted(found.runs, key=lambda run: (run.queue.id, run.first, run.end))
        return {"runs": [found.listed(run) for run in runs], "away": []}

    def _free_runs(self, group: str, body: dict[str, Any]) -> dict[str, Any]:
        return {
            "released": self._share_group(self.find_group(group)).free(
                body["queue"], body["first"]
            )
        }

    def interrupted(self) -> bool:
        """Return True if waiting pulls are to be answered; a hook for tests of the client."""
        return False

    def _next_due_s(self, group: FakeGroup) -> float:
        if any(settings.get("delay_s") for settings in group.delivery.values()):
            return DELAY_STEP_S  # nobody tells when a message gets old enough
        times = [one.due_at_ms for one in self.failures.waiting]
        return self.clock.seconds_to(
            [*times, *(one.due_at_ms for one in self.topics.delayed)]
        )


# Requests, and what answers them, given the words of the path and the body; None: an empty
# answer.
_ROUTES: dict[str, Callable[..., dict[str, Any] | None]] = {
    "GET topics/([^/]+)": lambda fake, topic, _: fake.topics.find(topic).view(),
    "POST topics/([^/]+)/messages": lambda fake, topic, body: {
        "results": fake.topics.publish(topic, body)
    },
    "DELETE messages/([^/]+)": lambda fake, message_id, _: fake.topics.recall(message_id),
    "POST groups": FakeBroker._create_group,
    "POST groups/([^/]+)/subscriptions": FakeBroker._subscribe,
    "POST groups/([^/]+)/consumers": FakeBroker._register,
    "POST consumers/([^/]+)/heartbeat": FakeBroker._heartbeat,
    "POST consumers/([^/]+)/traces": FakeBroker._traces,
    "POST consumers/([^/]+)/acquire": FakeBroker._acquire,
    "POST consumers/([^/]+)/commit": FakeBroker._commit,
    "POST consumers/([^/]+)/failures": FakeBroker._report,
    "POST consumers/([^/]+)/pull": FakeBroker._pull,
    "POST consumers/([^/]+)/share": FakeBroker._share,
    "POST consumers/([^/]+)/share/done": FakeBroker._share_done,
    "GET groups/([^/]+)/share/runs": lambda fake, group, _: fake._share_runs(group),
    "POST groups/([^/]+)/share/runs/release": FakeBroker._free_runs,
    "DELETE consumers/([^/]+)": lambda fake, consumer, _: fake._of_consumer(consumer).leave(
        consumer
    ),
}
