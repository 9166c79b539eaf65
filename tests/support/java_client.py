"""A client that behaves like PMQ's Java client: its calls, their order, its pauses, its use
of answers.

Separate threads poll, commit and send heartbeats, and a thread per queue reads it.
docs/reference/java-clients.md describes how it uses versions.
"""

from __future__ import annotations

import http.client
import itertools
import json
import os
import random
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

HEADERS = {"Content-Type": "application/json; charset=utf-8", "User-Agent": "okhttp/3.9.1"}
CONSUMER, META = "/api/client/consumer/", "/api/server/meta/"
VERSION = "5.5.1-SNAPSHOT"
TIMEOUT_S = 10.0
PAUSE_S = 0.5  # after a call that failed
_ports = itertools.count(20_000)


class Failed(Exception):
    """A call failed in all its attempts."""


@dataclass(frozen=True)
class Timing:
    """Pauses in seconds, as in the Spring client."""

    commit: float = 0.5
    first_beat: float = 1.0
    beat: float = 10.0
    check: float = 120.0
    empty_pull: float = 0.5
    longer: float = 0.15
    all_from: float = 20.0  # after this time every tick commits every queue
    answers: int = 4  # number of polls before it starts to read


class Wire:
    """Calls of a thread over a kept connection."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._host, self._port, self._path = (
            parts.hostname or "",
            parts.port or 80,
            parts.path,
        )
        self._connection: http.client.HTTPConnection | None = None

    def call(self, path: str, body: Mapping[str, Any], *, tries: int = 1) -> dict[str, Any]:
        """Return the answer. Raises Failed."""
        base = {"lan": "java", "sdkVersion": VERSION, "clientIp": "192.0.2.2"}
        data = json.dumps({**base, **body}).encode()
        for tries_left in range(tries - 1, -1, -1):
            try:
                status, text = self._post(self._path + path, data)
                if 200 <= status < 300 and text.strip():
                    answer: dict[str, Any] = json.loads(text)
                    return answer
                problem = f"{status} {text[:200]!r}"
            except (OSError, http.client.HTTPException, ValueError) as error:
                self.close()
                problem = repr(error)
            if tries_left:
                # Also after the client was stopped: the calls of close() are repeated, too.
                threading.Event().wait(PAUSE_S)
        raise Failed(f"{path}: {problem}")

    def _post(self, path: str, data: bytes) -> tuple[int, bytes]:
        if self._connection is None:
            self._connection = http.client.HTTPConnection(
                self._host, self._port, timeout=TIMEOUT_S
            )
        self._connection.request("POST", path, data, HEADERS)
        answer = self._connection.getresponse()
        return answer.status, answer.read()

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection = None


@dataclass
class Group:
    """The client's state of a group."""

    version: int = 0
    rb_version: int = -1
    meta_version: int = -1
    queues: dict[str, dict[str, Any]] = field(default_factory=dict)
    answers: int = 0
    running: bool = False


# (message, queue) → whether it succeeded
Handler = Callable[[dict[str, Any], dict[str, Any]], bool]


class JavaClient:
    """A consumer in several groups. `handle` returns True if a message succeeded."""

    def __init__(
        self,
        url: str,
        groups: Mapping[str, list[str]],
        handle: Handler,
        *,
        timing: Timing | None = None,
    ) -> None:
        self.url, self.groups, self.handle = url, groups, handle
        self.timing = timing or Timing()
        self.name = f"127.0.0.1|{os.getpid()}|{random.randrange(10_000)}|{next(_ports)}"
        self.id = 0
        self.known = {group: Group() for group in groups}
        self.calls: dict[str, int] = {}
        self.stopped = threading.Event()
        self._lock = threading.RLock()
        self._executors: dict[str, _Executor] = {}
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        """Join the groups and start the threads."""
        self._join()
        for work in (self._poll, self._commit, self._beat, self._check):
            self._start_thread(work)

    def _join(self) -> None:
        wire = Wire(self.url)
        self._call(wire, META + "getMetaGroup", {}, tries=10)
        self.id = (
            self._call(wire, CONSUMER + "register", {"name": self.name}, tries=10).get("id")
            or 0
        )
        body = {"consumerId": self.id, "consumerName": self.name, "subEnv": "default"}
        body["consumerGroupNames"] = dict(self.groups)
        joined = self._call(wire, CONSUMER + "registerConsumerGroup", body, tries=2)
        wire.close()
        assert joined.get("suc"), joined
        names = joined.get("consumerGroupNameNew") or {}
        self.known = {names.get(group, group): Group() for group in self.groups}

    def close(self) -> None:
        """Stop, commit with flag 1, and leave."""
        self.stopped.set()
        with self._lock:
            # Under the lock, so that no poll starts readers at the same time.
            self._stop_executors(list(self._executors))
        wire = Wire(self.url)
        for thread in self._threads:
            thread.join(15)
        self._call(wire, CONSUMER + "deRegister", {"id": self.id}, tries=10)
        wire.close()

    def _start_thread(self, work: Callable[[Wire], None]) -> None:
        def run() -> None:
            wire = Wire(self.url)
            try:
                work(wire)
            finally:
                wire.close()

        thread = threading.Thread(target=run, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _call(
        self, wire: Wire, path: str, body: Mapping[str, Any], *, tries: int
    ) -> dict[str, Any]:
        name = path.rpartition("/")[2]
        self.calls[name] = self.calls.get(name, 0) + 1
        return wire.call(path, body, tries=tries)

    # polls

    def _poll(self, wire: Wire) -> None:
        while not self.stopped.is_set():
            versions = {name: group.version for name, group in self.known.items()}
            body = {"consumerId": self.id, "consumerGroupVersion": versions}
            try:
                answer = self._call(
                    wire, CONSUMER + "getConsumerGroupPolling", body, tries=10
                )
            except Failed:
                continue
            with self._lock:
                if not self.stopped.is_set():
                    self._apply(answer)

    def _apply(self, answer: Mapping[str, Any]) -> None:
        for name, group_answer in (answer.get("consumerGroups") or {}).items():
            self._apply_group(self.known[name], group_answer)
        for group in self.known.values():
            group.answers += not group.running
            if not group.running and group.answers >= self.timing.answers and group.version:
                self._start_executors(group)

    def _apply_group(self, group: Group, group_answer: Mapping[str, Any]) -> None:
        meta = group_answer["meta"]
        # A new assignment stops all readers; a change of settings alone is merged into
        # them.
        if meta["rbVersion"] > group.rb_version:
            if group.running:
                self._stop_executors(list(group.queues))
            group.queues = {
                key: dict(queue) for key, queue in group_answer["queues"].items()
            }
            group.rb_version, group.answers, group.running = meta["rbVersion"], 0, False
        elif meta["metaVersion"] > group.meta_version:
            for key, queue in group_answer["queues"].items():
                self._merge(group, key, queue)
        group.meta_version, group.version = meta["metaVersion"], meta["version"]

    def _merge(self, group: Group, key: str, queue: Mapping[str, Any]) -> None:
        if key not in group.queues:
            return
        earlier = group.queues[key]
        assert queue["threadSize"] <= earlier["threadSize"], "a newer Java fails here"
        moved = queue["offsetVersion"] != earlier["offsetVersion"]
        group.queues[key] = dict(queue)
        executor = self._executors.get(key)
        if executor is not None:
            executor.update(queue, moved=moved)

    def _start_executors(self, group: Group) -> None:
        group.running = True
        for key, queue in group.queues.items():
            self._executors[key] = _Executor(self, queue)

    def _stop_executors(self, keys: list[str]) -> None:
        """Stop reading queues, and commit those with flag 1 that were committed before."""
        executors = [self._executors.pop(key) for key in keys if key in self._executors]
        for executor in executors:
            executor.stop()
        offsets = [stopped.position() for stopped in executors if stopped.was_committed]
        if offsets:
            wire = Wire(self.url)
            self._send_commit(wire, offsets, flag=1)
            wire.close()

    def _check(self, wire: Wire) -> None:
        while not self.stopped.is_set():
            body = {
                "consumerId": self.id,
                "consumerGroupVersion": dict.fromkeys(self.known, 0),
            }
            with suppress(Failed):
                self._call(wire, CONSUMER + "getConsumerGroupPolling", body, tries=1)
            self.stopped.wait(self.timing.check)

    # commits and heartbeats

    def _commit(self, wire: Wire) -> None:
        waited = 0.0
        while not self.stopped.wait(self.timing.commit):
            waited += self.timing.commit
            with self._lock:
                executors = list(self._executors.values())
            due_executors = [
                executor
                for executor in executors
                if executor.is_due(everything=waited >= self.timing.all_from)
            ]
            if due_executors:
                self._send_commit(
                    wire, [executor.position() for executor in due_executors], flag=0
                )
                for executor in due_executors:
                    # A queue that was never committed is not committed at the stop either.
                    executor.was_committed = True

    def _send_commit(self, wire: Wire, offsets: list[dict[str, Any]], *, flag: int) -> None:
        with suppress(Failed):
            body = {"queueOffsets": offsets, "flag": flag}
            self._call(wire, CONSUMER + "commitOffset", body, tries=10)

    def _beat(self, wire: Wire) -> None:
        pause = self.timing.first_beat
        for number in itertools.count():
            if self.stopped.wait(pause):
                return
            pause = self.timing.beat
            body = {"consumerId": self.id, "asyn": int(number % 3 > 0)}
            try:
                answer = self._call(wire, CONSUMER + "heartbeat", body, tries=3)
            except Failed:
                continue
            if answer.get("deleted") == 1:
                self._restart()

    def _restart(self) -> None:
        with self._lock:
            self._stop_executors(list(self._executors))
            wire = Wire(self.url)
            self._call(wire, CONSUMER + "deRegister", {"id": self.id}, tries=10)
            wire.close()
            self._join()


class _Executor:
    """Reads a queue and handles its messages."""

    def __init__(self, client: JavaClient, queue: Mapping[str, Any]) -> None:
        self._client, self._queue = client, dict(queue)
        self._pulled = self._handled = self._sent = int(queue["offset"])
        self.was_committed = False
        self._guard, self._busy = threading.Lock(), threading.Lock()
        self._stopped = threading.Event()
        threading.Thread(target=self._run, daemon=True).start()

    def stop(self) -> None:
        """Stop, and wait up to 10 s for the message being handled, as the real client
        does."""
        self._stopped.set()
        if self._busy.acquire(timeout=10):
            self._busy.release()

    def update(self, queue: Mapping[str, Any], *, moved: bool) -> None:
        with self._guard:
            self._queue = dict(queue)
            if moved:
                self._pulled = self._handled = int(queue["offset"])

    def is_due(self, *, everything: bool) -> bool:
        if everything and self.was_committed:
            return True
        return self._handled != self._sent

    def position(self) -> dict[str, Any]:
        with self._guard:
            names = ("queueOffsetId", "offsetVersion", "consumerGroupName", "topicName")
            self._sent = self._handled
            return {**{name: self._queue[name] for name in names}, "offset": self._handled}

    def _run(self) -> None:
        wire, pause = Wire(self._client.url), 0.0
        while not self._stopped.wait(pause) and not self._client.stopped.is_set():
            messages = [] if self._queue["stopFlag"] else self._pull(wire)
            if messages:
                self._handle_all(wire, messages)
                pause = 0.0
                continue
            step, max_pause = self._client.timing.longer, self._queue["maxPullTime"]
            pause = self._client.timing.empty_pull if pause == 0 else pause + step
            pause = 0.05 if pause >= max_pause else pause
        wire.close()

    def _pull(self, wire: Wire) -> list[dict[str, Any]]:
        queue, start = self._queue, self._pulled
        body = {name: queue[name] for name in ("queueId", "topicName", "consumerGroupName")}
        body |= {"offsetStart": start, "offsetEnd": start + queue["pullBatchSize"]}
        try:
            answer = self._client._call(wire, CONSUMER + "pullData", body, tries=2)
        except Failed:
            return []
        return answer.get("msgs") or []

    def _handle_all(self, wire: Wire, messages: list[dict[str, Any]]) -> None:
        epoch = self._queue["offsetVersion"]
        self._pulled = messages[-1]["id"]
        for message in messages:
            with self._busy:
                if self._stopped.is_set() or self._queue["offsetVersion"] != epoch:
                    return
                self._handle(wire, message)
                with self._guard:
                    if self._queue["offsetVersion"] == epoch:
                        self._handled = message["id"]

    def _handle(self, wire: Wire, message: Mapping[str, Any]) -> None:
        retries = self._queue["retryCount"]
        attempt = message["retryCount"]
        if attempt >= max(1, retries) or self._client.handle(dict(message), self._queue):
            return
        if attempt < retries:
            self._report(wire, message)

    def _report(self, wire: Wire, message: Mapping[str, Any]) -> None:
        names = ("id", "tag", "bizId", "head", "body", "traceId")
        retry = {name: message[name] for name in names if message.get(name) is not None}
        retry["retryCount"] = message["retryCount"] + 1
        queue = self._queue
        topic = f"{queue['consumerGroupName']}_{queue['originTopicName']}_fail"
        body = {
            "queueId": queue["queueId"],
            "failMsg": {"msgs": [retry], "topicName": topic, "synFlag": 1},
        }
        with suppress(Failed):
            self._client._call(
                wire, CONSUMER + "publishAndUpdateResultFailMsg", body, tries=2
            )
