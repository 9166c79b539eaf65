"""A broker in memory: see FakeBroker."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from catmq_client.callables import check_callable
from catmq_client.errors import (
    CatmqError,
    Conflict,
    ConnectFailed,
    FieldError,
    InvalidRequest,
    NotFound,
)
from catmq_client.http import wire
from catmq_client.reading.pull_commits import ABOUT_PATH, FEATURE, FIELD
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
from catmq_client.version import VERSION

# How often a waiting pull checks whether a subscription's delay is over, s.
DELAY_STEP_S = 0.02
# States of a pulled queue that do not end the wait of the pull.
_NO_NEWS_STATES = ("ok", "stopped", "unavailable")


@dataclass(frozen=True, slots=True)
class Seen:
    """A request that the broker received."""

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
    """A Transport that answers from memory as a broker would.

    Requests and answers are encoded and decoded as over HTTP, in JSON or MessagePack.
    `create_topic` creates topics. `subscribe` creates groups, and so does a consumer that
    names its topics. A group has a single member at a time, a share group any number.
    `fail` plants errors, before or after the request is carried out. Unsupported requests
    raise NotBuilt. Safe to share between threads; a pull waits for messages.
    """

    def __init__(
        self, *, codec: wire.Codec | None = None, session_timeout_ms: int = 15_000
    ) -> None:
        """Create the broker, without topics and groups.

        Requests and answers are encoded and decoded by `codec` (default: JSON).
        """
        self.clock: FakeClock = FakeClock()
        self.topics: FakeTopics = FakeTopics(self.clock)
        self.groups: dict[str, FakeGroup] = {}
        self.failures: FakeFailures = FakeFailures(self.topics)
        self.requests: list[Seen] = []
        # Optional fields that it takes. A broker of an earlier release has fewer.
        self.features: tuple[str, ...] = (FEATURE,)
        self.session_timeout_ms = session_timeout_ms
        self._codec = codec or wire.JsonCodec()
        self._faults: list[_Fault] = []
        self._cut_off: set[str] = set()
        # Waiting pulls wait on it. Whatever changes the answer of a pull notifies it.
        self._changed = threading.Condition()

    def create_topic(self, name: str, *, queues: int = 4) -> FakeTopic:
        """Create a topic. It replaces a topic of the same name."""
        with self._changed:
            return self.topics.create(name, queues=queues)

    def subscribe(
        self, group: str, topic: str, *, start: str = "earliest", **group_settings: Any
    ) -> FakeGroup:
        """Let a group read a topic from its start ("earliest") or end ("latest").

        If the group does not exist, it is created with `group_settings`, such as
        mode="share", lease_ms=5_000.
        """
        with self._changed:
            subscribed_group = self.ensure_group(group, group_settings)
            subscribed_group.subscribe(self.topics.find(topic).queues, start=start)
            self._changed.notify_all()
            return subscribed_group

    def configure(self, group: str, topic: str, **settings: Any) -> None:
        """Change settings of a subscription, as `catmq subscription set` does.

        Names and units: catmq_client.reading.subscription_settings.Settings; tags=("new",
        "paid"), headers={"region": ("eu", "us")}.
        """
        # Checks names and values, and raises before anything changes.
        Settings.from_answer(settings)
        self.change(lambda: self.find_group(group).configure(topic, settings))

    def advance(self, seconds: float) -> None:
        """Advance the broker's clock.

        Retries and delayed messages that are due then are delivered.
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
            return {
                queue: position.committed
                for queue, position in self.find_group(group).positions.items()
            }

    def runs(self, group: str) -> list[FakeRun]:
        """Return the runs of a share group: messages that are leased, or that wait to be
        delivered again.
        """
        with self._changed:
            return [*self._share_group(self.find_group(group)).runs]

    def waiting(self, group: str) -> list[FailedMessage]:
        """Return the messages of a group that failed and wait for their next retry."""
        with self._changed:
            return [failed for failed in self.failures.waiting if failed.group == group]

    def dead(self, group: str) -> list[FailedMessage]:
        with self._changed:
            return [failed for failed in self.failures.dead if failed.group == group]

    def fail(
        self, request: str, error: CatmqError, *, after: bool = False, times: int = 1
    ) -> None:
        """Make the next `times` requests whose `METHOD path` matches a pattern raise `error`.

        after=True: the request is carried out first, as if its response was lost.
        """
        with self._changed:
            self._faults.append(_Fault(re.compile(request), error, after, times))

    def cut_off(self, name: str) -> None:
        """Refuse all requests of the member with this name, as if its process had died, until
        `heal`.
        """
        self.change(lambda: self._cut_off.add(name))

    def heal(self) -> None:
        """Remove all planted errors, and answer members that were cut off."""
        with self._changed:
            self._faults.clear()
            self._cut_off.clear()

    def change(self, what: Callable[[], object]) -> None:
        """Change the broker's state by calling `what` under its lock, and wake the waiting
        pulls.
        """
        check_callable("what", what)
        with self._changed:
            what()
            self._changed.notify_all()

    def seen(self, request: str) -> list[Seen]:
        """Return the requests so far whose `METHOD path` matches a pattern."""
        pattern = re.compile(request)
        with self._changed:
            return [
                seen
                for seen in self.requests
                if pattern.search(f"{seen.method} {seen.path}")
            ]

    def wait_until(self, true: Callable[[], bool], *, timeout_s: float = 10.0) -> bool:
        """Wait until the condition `true()` holds. Return False if it does not in time.

        The condition is checked whenever a request begins or ends.
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
            # Recorded before any error is raised, so that seen() shows failed requests,
            # too.
            self.requests.append(Seen(method, path, decoded))
            self._changed.notify_all()
            self._raise_fault(method, path, after=False)
            self._raise_if_cut_off(path, decoded)
            try:
                answer = self._answer(method, path, decoded)
            finally:
                self._changed.notify_all()
            # Raised after the request is carried out, as if its response was lost.
            self._raise_fault(method, path, after=True)
        # Message bodies go through the codec, as over HTTP, so that tests see its types.
        for answer_part in (answer, *answer.get("queues", ()), *answer.get("runs", ())):
            if isinstance(answer_part.get("messages"), list):
                encoded = self._codec.encode({"messages": answer_part["messages"]})
                answer_part["messages"] = self._codec.decode(encoded)["messages"]
        return answer

    def find_group(self, name: str) -> FakeGroup:
        """Return a group, or raise NotFound, which names the command that creates it."""
        if name not in self.groups:
            raise NotFound(
                f"there is no group {name}; make it with: catmq group create {name}",
                code="group_not_found",
                status=404,
            )
        return self.groups[name]

    def ensure_group(self, name: str, body: dict[str, Any]) -> FakeGroup:
        """Return a group. If it is new, it is created with the settings of a registration."""
        group_class = FakeShareGroup if body.get("mode") == "share" else FakeGroup
        if name not in self.groups:
            share_settings = {
                setting: body[setting]
                for setting in SETTINGS
                if body.get(setting) is not None
            }
            if share_settings and group_class is FakeGroup:
                raise InvalidRequest(
                    f"{', '.join(share_settings)}: only for mode share", status=422
                )
            self.groups[name] = group_class(
                name,
                clock=self.clock,
                session_timeout_ms=body.get("session_timeout_ms")
                or self.session_timeout_ms,
                **share_settings,
            )
        return self.find_group(name)

    def _answer(self, method: str, path: str, body: dict[str, Any]) -> dict[str, Any]:
        for route, handler in _ROUTES.items():
            match = re.fullmatch(route, f"{method} {path.removeprefix('/api/v1/')}")
            if match:
                return handler(self, *map(unquote, match.groups()), body) or {}
        raise unsupported(f"{method} {path}")

    def _raise_fault(self, method: str, path: str, *, after: bool) -> None:
        # In the order of planting: a later error is raised when the earlier errors are used
        # up.
        fault = next(
            (
                f
                for f in self._faults
                if f.left > 0 and f.pattern.search(f"{method} {path}")
            ),
            None,
        )
        if fault is not None and fault.after == after:
            fault.left -= 1
            raise fault.error

    def _raise_if_cut_off(self, path: str, body: dict[str, Any]) -> None:
        for name in self._cut_off:
            # Consumer ids begin with the name of the member; see FakeGroup.join.
            if f"/consumers/{name}.k." in path or body.get("name") == name:
                raise ConnectFailed(f"{name} is cut off")

    def _group_of(self, consumer_id: str) -> FakeGroup:
        for group in self.groups.values():
            if group.knows_consumer(consumer_id):
                return group
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
        consumer_group = (
            self.ensure_group(group, body) if topics else self.find_group(group)
        )
        settings = {
            **{n: body.get(n) for n in ("mode", "session_timeout_ms", "instance_id")},
            **{name: body[name] for name in SETTINGS if name in body},
        }
        consumer_id = consumer_group.join(
            body.get("instance_id") or body["name"], body["incarnation"], **settings
        )
        # Registering with topics also subscribes the group, as at a broker.
        for topic in topics:
            consumer_group.subscribe(topic.queues, start="earliest")
        return {
            "consumer_id": consumer_id,
            "session_timeout_ms": consumer_group.session_timeout_ms,
            "heartbeat_interval_ms": consumer_group.heartbeat_interval_ms,
        }

    def _accept_traces(self, consumer: str, _body: dict[str, Any]) -> None:
        """Accept traces of a registered consumer without storing them."""
        self._group_of(consumer)

    def _acquire(self, consumer: str, body: dict[str, Any]) -> dict[str, Any]:
        group = self._owning_group(consumer)
        return {
            "queues": [
                group.acquire(consumer, q["queue"], q["epoch"]) for q in body["queues"]
            ],
            "generation": group.generation,
        }

    def _commit(self, consumer: str, body: dict[str, Any]) -> dict[str, Any]:
        group = self._owning_group(consumer)
        results = _commit_all(group, consumer, body["offsets"])
        return {"results": results, "generation": group.generation}

    def _pull(self, consumer: str, body: dict[str, Any]) -> dict[str, Any]:
        group = self._owning_group(consumer)
        if FIELD in body and FEATURE not in self.features:
            unknown = FieldError(FIELD, "is not a field of this request")
            raise InvalidRequest(
                f"{FIELD}: {unknown.message}", errors=[unknown], status=400
            )
        # Before the read and the wait, as at a broker. A commit that is not stored is news.
        results = _commit_all(group, consumer, body.get(FIELD, ()))
        has_failed = any(result["state"] != "ok" for result in results)

        def read() -> tuple[dict[str, Any], bool]:
            messages_left, queues = body["max_messages"], []
            for request in body["queues"]:
                queues.append(group.read(consumer, request, limit=messages_left))
                messages_left -= len(queues[-1]["messages"])
            has_changed = group.generation > body["generation"]
            has_news = (
                has_changed
                or has_failed
                or any(
                    queue["messages"] or queue["state"] not in _NO_NEWS_STATES
                    for queue in queues
                )
            )
            answer = {
                "generation": max(group.generation, body["generation"]),
                "queues": queues,
                "assignment_changed": has_changed,
            }
            return answer | ({FIELD: results} if results else {}), has_news

        return self._long_poll(group, body["wait_ms"], read)

    def _long_poll(
        self,
        group: FakeGroup,
        wait_ms: int,
        read: Callable[[], tuple[dict[str, Any], bool]],
    ) -> dict[str, Any]:
        """Return the answer of a pull as soon as it has news, or after its wait."""
        give_up_at = time.monotonic() + wait_ms / 1000
        while True:
            self.failures.move_due(group)
            self.topics.move_due()
            answer, has_news = read()
            wait_s = 0.0 if self.interrupted() else give_up_at - time.monotonic()
            if has_news or wait_s <= 0:
                return answer
            # No event marks the end of a subscription's delay, so the pull checks for it.
            next_due_s = DELAY_STEP_S
            if not any(settings.get("delay_s") for settings in group.delivery.values()):
                runs = group.runs if isinstance(group, FakeShareGroup) else ()
                next_due_s = self.clock.seconds_to(
                    [
                        *(failed.due_at_ms for failed in self.failures.waiting),
                        *(delayed.due_at_ms for delayed in self.topics.delayed),
                        *(run.lease_until_ms for run in runs),
                    ]
                )
            # Never 0, so that a due time in the past does not make the loop spin.
            self._changed.wait(min(wait_s, max(0.001, next_due_s)))

    def _owning_group(self, consumer: str) -> FakeGroup:
        """Return the group of a consumer, or raise Conflict if its members own no queues."""
        group = self._group_of(consumer)
        if group.owns_queues:
            return group
        raise Conflict(
            f"group {group.name} is a share group: its members lease messages, and own "
            "no queues",
            code="group_settings_differ",
            status=409,
        )

    def _share_group(self, group: FakeGroup) -> FakeShareGroup:
        if not isinstance(group, FakeShareGroup):
            raise Conflict(
                f"group {group.name} is no share group: its mode is {group.mode}",
                code="group_settings_differ",
                status=409,
            )
        return group

    def _share(self, consumer: str, body: dict[str, Any]) -> dict[str, Any]:
        group = self._share_group(self._group_of(consumer))
        done = [group.done(report) for report in body.get("done", ())]

        def lease() -> tuple[dict[str, Any], bool]:
            self.failures.end_leases(group)
            # The member may be cut off while its pull waits.
            self._raise_if_cut_off(f"/consumers/{consumer}", body)
            runs = group.take(consumer, body)
            answer = {
                "generation": group.generation,
                "runs": runs,
                "done": done,
                "queues": [],
            }
            return answer, bool(runs)

        return self._long_poll(group, body.get("wait_ms", 0), lease)

    def _share_done(self, consumer: str, body: dict[str, Any]) -> dict[str, Any]:
        group = self._share_group(self._group_of(consumer))
        return {
            "generation": group.generation,
            "done": [group.done(report) for report in body["done"]],
        }

    def interrupted(self) -> bool:
        """Return True if waiting pulls are to be answered; a hook for tests of the client."""
        return False


def _commit_all(
    group: FakeGroup, consumer: str, entries: Iterable[Mapping[str, int]]
) -> list[dict[str, Any]]:
    """Commit offsets. Return the result of each."""
    return [
        group.commit(consumer, entry["queue"], entry["epoch"], entry["offset"])
        for entry in entries
    ]


# Handlers of requests, called with the variables of the path and the body. None is an empty
# answer.
_ROUTES: dict[str, Callable[..., dict[str, Any] | None]] = {
    f"GET {ABOUT_PATH}": lambda fake, _: {
        "name": "catmq",
        "version": VERSION,
        "api_version": 1,
        "features": [*fake.features],
        "limits": {},
    },
    "GET topics/([^/]+)": lambda fake, topic, _: fake.topics.find(topic).view(),
    "POST topics/([^/]+)/messages": lambda fake, topic, body: {
        "results": fake.topics.publish(topic, body)
    },
    "DELETE messages/([^/]+)": lambda fake, message_id, _: fake.topics.recall(message_id),
    "POST groups": FakeBroker._create_group,
    "POST groups/([^/]+)/subscriptions": FakeBroker._subscribe,
    "POST groups/([^/]+)/consumers": FakeBroker._register,
    "POST consumers/([^/]+)/heartbeat": lambda fake, consumer, body: fake._group_of(
        consumer
    ).heartbeat(consumer, body["generation"], body["owned"]),
    "POST consumers/([^/]+)/traces": FakeBroker._accept_traces,
    "POST consumers/([^/]+)/acquire": FakeBroker._acquire,
    "POST consumers/([^/]+)/commit": FakeBroker._commit,
    "POST consumers/([^/]+)/failures": lambda fake, consumer, body: fake.failures.report(
        fake._group_of(consumer), consumer, body["messages"]
    ),
    "POST consumers/([^/]+)/pull": FakeBroker._pull,
    "POST consumers/([^/]+)/share": FakeBroker._share,
    "POST consumers/([^/]+)/share/done": FakeBroker._share_done,
    "GET groups/([^/]+)/share/runs": lambda fake, group, _: fake._share_group(
        fake.find_group(group)
    ).operator_view(),
    "POST groups/([^/]+)/share/runs/release": lambda fake, group, body: {
        "released": fake._share_group(fake.find_group(group)).free(
            body["queue"], body["first"]
        )
    },
    "DELETE consumers/([^/]+)": lambda fake, consumer, _: fake._group_of(consumer).leave(
        consumer
    ),
}
