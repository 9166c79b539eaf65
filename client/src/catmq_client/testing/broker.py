"""A broker in memory; see FakeBroker."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from catmq_client.errors import CatmqError, Conflict, FieldError, InvalidRequest, NotFound, Unavailable
from catmq_client.http import wire
from catmq_client.reading.subscription_settings import Settings
from catmq_client.testing.clock import FakeClock
from catmq_client.testing.delays import FakeDelays
from catmq_client.testing.failures import FailedMessage, FakeFailures
from catmq_client.testing.groups import FakeGroup, FakeGroups
from catmq_client.testing.topics import FakeTopic, FakeTopics, StoredMessage, message_view

# Queues in one request.
MOST_QUEUES = 1_000
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
    """A Transport that answers from memory as a broker would, through real JSON or MessagePack.

    Topics are made with `create_topic`; groups when a consumer names topics, or with `subscribe`. `stop`,
    `start` and `drain` are what operators do; `fail` plants errors, before or after the request was
    carried out; `topics.down_nodes` names nodes that refuse, so that a batch over several nodes is stored
    in part. Safe to share between threads; a pull waits.
    """

    def __init__(self, *, codec: wire.Codec | None = None, session_timeout_ms: int = 15_000) -> None:
        """`codec` carries requests and answers there and back, as HTTP would (default: JSON)."""
        self.clock = FakeClock()
        self.topics = FakeTopics(self.clock)
        self.delays = FakeDelays(self.topics, self.clock)
        self.groups = FakeGroups(self.topics, self.clock)
        self.failures = FakeFailures(self.topics, self.clock)
        self.requests: list[Seen] = []
        self.session_timeout_ms = session_timeout_ms
        self.draining = False
        self._codec = codec or wire.JsonCodec()
        self._faults: list[_Fault] = []
        # A pull waits on it; everything that changes what a pull would answer notifies.
        self._changed = threading.Condition()

    def create_topic(
        self,
        name: str,
        *,
        queues: int = 4,
        nodes: list[str] | None = None,
        keyed: str = "strict",
        on_unknown: str = "fail",
    ) -> FakeTopic:
        """A new topic, its queues spread over `nodes`."""
        with self._changed:
            return self.topics.create(
                name, queues=queues, nodes=nodes or ["main"], keyed=keyed, on_unknown=on_unknown
            )

    def subscribe(
        self, group: str, topic: str, *, start: str = "earliest", mode: str | None = None
    ) -> FakeGroup:
        """The group, made if it is new, reading the topic from its start or end."""
        with self._changed:
            found = self.groups.ensure(group, mode=mode, session_timeout_ms=self.session_timeout_ms)
            self.groups.subscribe(found, [topic], start=start)
            self._changed.notify_all()
            return found

    def configure(self, group: str, topic: str, **settings: Any) -> None:
        """Changes how the messages of a topic come to a group, as `catmq subscription set` does.

        Names and units: catmq_client.reading.subscription_settings.Settings; tags=("new", "paid").
        """
        Settings.from_answer(settings)
        self.change(lambda: self.groups.find(group).configure(topic, settings))

    def advance(self, seconds: float) -> None:
        """Puts the broker's clock forward: what is due by then comes."""
        self.change(lambda: self.clock.advance(seconds))

    def dead(self, group: str) -> list[FailedMessage]:
        """The messages of a group that failed for the last time."""
        with self._changed:
            return [one for one in self.failures.dead if one.group == group]

    def waiting(self, group: str) -> list[FailedMessage]:
        """The messages of a group that failed and wait for their next retry."""
        with self._changed:
            return [one for one in self.failures.waiting if one.group == group]

    def redrive(self, group: str) -> None:
        """Makes the dead messages of a group come again, at once."""
        self.change(lambda: self.failures.redrive([o for o in self.failures.dead if o.group == group]))

    def reset(self, group: str, topic: str, *, to: str | int) -> None:
        """Moves a group in all queues of a topic, while it reads: to "earliest", "latest" or an offset."""

        def move() -> None:
            queues = self.topics.find(topic).queues
            ends = {"earliest": [q.low for q in queues], "latest": [q.head for q in queues]}
            clamped = [max(q.low, min(q.head, to)) if isinstance(to, int) else 0 for q in queues]
            self.groups.find(group).reset(queues, ends[to] if isinstance(to, str) else clamped)

        self.change(move)

    def stop(self, group: str, *, topic: str | None = None, queue: int | None = None) -> None:
        """Stops consumption of a group, or of one topic or one queue in it."""
        self.change(lambda: self.groups.find(group).set_stopped(True, topic=topic, queue=queue))

    def start(self, group: str, *, topic: str | None = None, queue: int | None = None) -> None:
        """Undoes `stop` with the same arguments."""
        self.change(lambda: self.groups.find(group).set_stopped(False, topic=topic, queue=queue))

    def drain(self, draining: bool = True) -> None:
        """Pulled out, or stopping: it answers the pulls that wait, and refuses what begins something."""
        self.change(lambda: setattr(self, "draining", draining))

    def messages(self, topic: str) -> list[StoredMessage]:
        """All messages of a topic, queue by queue."""
        with self._changed:
            self.delays.move_due()
            return [message for queue in self.topics.find(topic).queues for message in queue.messages]

    def committed(self, group: str, instance: str | None = None) -> dict[int, int]:
        """The committed offset of each queue of a group, or of an instance of a broadcasting one."""
        with self._changed:
            found = self.groups.find(group)
            positions = found.positions if instance is None else found.instances[instance]
            return {queue: position.committed for queue, position in positions.items()}

    def expire(self, group: str, name: str) -> None:
        """Takes the member of that name out of its group, as if its session had run out."""
        with self._changed:
            found = self.groups.find(group)
            for member in [m for m in found.members.values() if m.name == name]:
                found.remove(member.consumer_id, "expired")
            self._changed.notify_all()

    def clean(self, queue: int, *, before: int) -> None:
        """Drops the messages of a queue below an offset, as retention does."""
        with self._changed:
            found = self.topics.queues[queue]
            found.messages = found.messages[before - found.low :]
            found.low = before

    def fail(self, request: str, error: CatmqError, *, after: bool = False, times: int = 1) -> None:
        """Makes the next `times` requests that match the pattern `METHOD path` raise `error`.

        after=True: only after they were carried out, as when the answer gets lost.
        """
        with self._changed:
            self._faults.append(_Fault(re.compile(request), error, after, times))

    def heal(self) -> None:
        """Forgets all planted errors."""
        with self._changed:
            self._faults.clear()

    def change(self, what: Callable[[], object]) -> None:
        """Carries out a change of the broker's insides and wakes the waiting pulls."""
        with self._changed:
            what()
            self._changed.notify_all()

    def seen(self, request: str) -> list[Seen]:
        """The requests so far that match the pattern `METHOD path`."""
        pattern = re.compile(request)
        with self._changed:
            return [seen for seen in self.requests if pattern.search(f"{seen.method} {seen.path}")]

    def wait_until(self, true: Callable[[], bool], *, timeout_s: float = 10.0) -> bool:
        """Return True if `true()` became true in time; looked at whenever a request comes or ends."""
        with self._changed:
            return self._changed.wait_for(true, timeout_s)

    def request(
        self,
        method: str,
        path: str,
        *,
        body: Mapping[str, Any] | None = None,
        params: Mapping[str, Any] | None = None,
        timeout_s: float = 10.0,
    ) -> dict[str, Any]:
        """See Transport."""
        decoded: dict[str, Any] = {} if body is None else self._codec.decode(wire.encoded(self._codec, body))
        query = {name: str(value) for name, value in (params or {}).items()}
        with self._changed:
            self.requests.append(Seen(method, path, decoded))
            self._changed.notify_all()
            self._raise_fault(method, path, after=False)
            try:
                answer = self._answer(method, path, decoded, query)
            finally:
                self._changed.notify_all()
            self._raise_fault(method, path, after=True)
        return self._through_the_codec(answer)

    def _answer(self, method: str, path: str, body: dict[str, Any], query: dict[str, str]) -> dict[str, Any]:
        for verb, pattern, view in _ROUTES:
            found = re.fullmatch("/api/v1/" + pattern, path)
            if verb == method and found:
                return view(self, "/".join(map(unquote, found.groups())), body, query)
        raise NotFound(f"{method} {path}: nothing here", code="url_not_found", status=404)

    def _raise_fault(self, method: str, path: str, *, after: bool) -> None:
        # In the order planted: a later fault has its turn when the earlier ones are used up.
        live = (f for f in self._faults if f.left > 0 and f.pattern.search(f"{method} {path}"))
        fault = next(live, None)
        if fault is not None and fault.after == after:
            fault.left -= 1
            raise fault.error

    def _through_the_codec(self, answer: dict[str, Any]) -> dict[str, Any]:
        parts = [answer, *answer.get("queues", ())] if answer.get("queues") else [answer]
        for part in parts:
            if isinstance(part, dict) and part.get("messages"):
                part["messages"] = self._codec.decode(self._codec.encode({"messages": part["messages"]}))[
                    "messages"
                ]
        return answer

    def _check_open(self) -> None:
        if self.draining:
            raise Unavailable("this broker was pulled out", code="draining", retry_after_ms=100, status=503)

    def _publish(self, topic: str, body: dict[str, Any], query: dict[str, str]) -> dict[str, Any]:
        self._check_open()
        return {"results": self.topics.publish(topic, body)}

    def _topic(self, topic: str, body: dict[str, Any], query: dict[str, str]) -> dict[str, Any]:
        return self.topics.find(topic).view()

    def _browse(self, topic: str, body: dict[str, Any], query: dict[str, str]) -> dict[str, Any]:
        queue = self.topics.queues[int(query["queue"])]
        found = queue.between(max(int(query.get("offset", 0)), queue.low), int(query.get("limit", 100)))
        views = [{"queue": queue.id, **message_view(message)} for message in found]
        next_offset = found[-1].offset + 1 if found and found[-1].offset + 1 < queue.head else None
        return {"messages": views, "scanned": len(found), "next": next_offset}

    def _subscribe(self, group: str, body: dict[str, Any], query: dict[str, str]) -> dict[str, Any]:
        topic, start = body["topic"], body["start"]
        if not self.groups.subscribe(self.groups.find(group), [topic], start=start):
            raise Conflict(f"group {group} reads {topic} already", code="already_exists", status=409)
        return {"group": group, "topic": topic, "state": "ready", "start": start, "stopped": False}

    def _create_group(self, _: str, body: dict[str, Any], query: dict[str, str]) -> dict[str, Any]:
        if body["name"] in self.groups.by_name:
            raise Conflict(f"group {body['name']} exists already", code="already_exists", status=409)
        return {"name": self._ensure_group(body["name"], body).name}

    def _ensure_group(self, name: str, body: dict[str, Any]) -> FakeGroup:
        timeout_ms = body.get("session_timeout_ms") or self.session_timeout_ms
        return self.groups.ensure(name, mode=body.get("mode"), session_timeout_ms=timeout_ms)

    def _register(self, group: str, body: dict[str, Any], query: dict[str, str]) -> dict[str, Any]:
        self._check_open()
        topics = [self.topics.find(topic).name for topic in body.get("topics") or ()]
        found = self._ensure_group(group, body) if topics else self.groups.find(group)
        instance_id = body.get("instance_id")
        found.check(
            mode=body.get("mode"), session_timeout_ms=body.get("session_timeout_ms"), instance_id=instance_id
        )
        self.groups.subscribe(found, topics, start="earliest")
        member = found.join(instance_id or body["name"], body["incarnation"])
        return {
            "consumer_id": member.consumer_id,
            "session_timeout_ms": found.session_timeout_ms,
            "heartbeat_interval_ms": min(found.heartbeat_interval_ms, found.session_timeout_ms // 3),
        }

    def _heartbeat(self, consumer: str, body: dict[str, Any], query: dict[str, str]) -> dict[str, Any]:
        return self.groups.of_consumer(consumer).heartbeat(consumer, body["generation"], body["owned"])

    def _acquire(self, consumer: str, body: dict[str, Any], query: dict[str, str]) -> dict[str, Any]:
        group = self.groups.of_consumer(consumer)
        acquired = [group.acquire(consumer, q["queue"], q["epoch"]) for q in _limited(body, "queues")]
        return {"queues": acquired, "generation": group.generation}

    def _commit(self, consumer: str, body: dict[str, Any], query: dict[str, str]) -> dict[str, Any]:
        group = self.groups.of_consumer(consumer)
        asked = [(o["queue"], o["epoch"], o["offset"]) for o in _limited(body, "offsets")]
        return {"results": [group.commit(consumer, *one) for one in asked], "generation": group.generation}

    def _report(self, consumer: str, body: dict[str, Any], query: dict[str, str]) -> dict[str, Any]:
        group = self.groups.of_consumer(consumer)
        return self.failures.report(group, consumer, _limited(body, "messages"))

    def _patch(self, group: str, body: dict[str, Any], query: dict[str, str]) -> dict[str, Any]:
        group, topic = group.split("/")
        settings = dict(body)
        if "tags" in body:
            tags = [tag.strip() for tag in body["tags"].replace("||", ",").split(",")]
            settings["tags"] = tuple(tag for tag in tags if tag not in {"", "*"})
        self.groups.find(group).configure(topic, settings)
        return {"group": group, "topic": topic, **body}

    def _pull(self, consumer: str, body: dict[str, Any], query: dict[str, str]) -> dict[str, Any]:
        self._check_open()
        group = self.groups.of_consumer(consumer)
        give_up_at = time.monotonic() + body["wait_ms"] / 1000
        while True:
            self.failures.move_due(group)
            self.delays.move_due()
            left, queues = body["max_messages"], []
            for asked in _limited(body, "queues"):
                queues.append(group.read(consumer, asked, limit=left))
                left -= len(queues[-1]["messages"])
            news = [q for q in queues if q["messages"] or q["state"] not in _WAITING]
            generation = max(group.generation, body["generation"])
            changed = generation != body["generation"]
            wait_s = give_up_at - time.monotonic()
            if news or changed or wait_s <= 0 or self.draining:
                return {"generation": generation, "queues": queues, "assignment_changed": changed}
            # Nobody tells when a message gets old enough.
            delayed = any(settings.get("delay_s") for settings in group.delivery.values())
            due_s = min(self.failures.next_due_s(), self.delays.next_due_s())
            due_s = DELAY_STEP_S if delayed else due_s
            self._changed.wait(min(wait_s, max(0.001, due_s)))

    def _recall(self, message_id: str, body: dict[str, Any], query: dict[str, str]) -> dict[str, Any]:
        self.delays.recall(message_id)
        return {}

    def _delayed(self, topic: str, body: dict[str, Any], query: dict[str, str]) -> dict[str, Any]:
        limit = int(query.get("limit", 100))
        return self.delays.listing(topic, after=query.get("after"), limit=limit)

    def _leave(self, consumer: str, body: dict[str, Any], query: dict[str, str]) -> dict[str, Any]:
        self.groups.of_consumer(consumer).remove(consumer, "left")
        return {}


def _limited(body: dict[str, Any], field: str) -> list[dict[str, int]]:
    if len(body[field]) > MOST_QUEUES:
        raise InvalidRequest(
            f"{field}: at most {MOST_QUEUES}", errors=[FieldError(field, "too many")], status=400
        )
    found: list[dict[str, int]] = body[field]
    return found


_View = Callable[[FakeBroker, str, dict[str, Any], dict[str, str]], dict[str, Any]]
_ROUTES: list[tuple[str, str, _View]] = [
    ("GET", r"topics/([^/]+)", FakeBroker._topic),
    ("POST", r"topics/([^/]+)/messages", FakeBroker._publish),
    ("GET", r"topics/([^/]+)/messages", FakeBroker._browse),
    ("GET", r"topics/([^/]+)/delayed", FakeBroker._delayed),
    ("DELETE", r"messages/([^/]+)", FakeBroker._recall),
    ("POST", r"(groups)", FakeBroker._create_group),
    ("POST", r"groups/([^/]+)/subscriptions", FakeBroker._subscribe),
    ("PATCH", r"groups/([^/]+)/subscriptions/([^/]+)", FakeBroker._patch),
    ("POST", r"groups/([^/]+)/consumers", FakeBroker._register),
    ("POST", r"consumers/([^/]+)/heartbeat", FakeBroker._heartbeat),
    ("POST", r"consumers/([^/]+)/acquire", FakeBroker._acquire),
    ("POST", r"consumers/([^/]+)/commit", FakeBroker._commit),
    ("POST", r"consumers/([^/]+)/failures", FakeBroker._report),
    ("POST", r"consumers/([^/]+)/pull", FakeBroker._pull),
    ("DELETE", r"consumers/([^/]+)", FakeBroker._leave),
]
