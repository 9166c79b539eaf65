"""Calls of Java clients in recorded runs, made to our broker: its answers have all fields
that they read.

`java_calls` has the calls, each with the shape of the answer in the state that it was in,
and the order in which each run made them. Ids, versions and offsets are those that our
broker told. What a run caused by other means (a setting that an operator changed, a message
that came) is caused before the call that shows it.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from brokerapi.java import polling, reading
from tests.support.broker import Broker
from tests.support.java_client import Wire
from tests.support.waiting import until

CALLS = Path(__file__).parent / "java_calls"
RECORDED: list[dict[str, Any]] = [
    json.loads(line) for line in (CALLS / "calls.jsonl").read_text().splitlines()
]
RUNS: dict[str, list[int]] = {
    f"{client}-{name}": calls
    for client in ("pmq", "catmq")
    for name, calls in json.loads((CALLS / f"{client}.json").read_text()).items()
}
QUEUES = 6
NOBODY = 1  # a number that no client has
KINDS = {"int": int, "text": str, "bool": bool}


def assert_shape(shape: Any, value: Any, where: str) -> None:
    """Fail unless a value has every field of a shape, in its type."""
    if isinstance(shape, dict):
        assert isinstance(value, dict), where
        for name, part in shape.items():
            assert name in value, f"{where}.{name} is missing"
            assert_shape(part, value[name], f"{where}.{name}")
    elif isinstance(shape, list):
        assert isinstance(value, list), where
        for one in value if shape else ():
            assert_shape(shape[0], one, f"{where}[]")
    elif shape == "false":
        assert value is False, where
    elif shape != "null":
        assert type(value) is KINDS[shape], f"{where} is {value!r}"


class Run:
    """The broker as it stands, and what our clients were told so far."""

    def __init__(self, broker: Broker) -> None:
        self.broker, self.wire = broker, Wire(broker.url)
        self.topic = broker.ok("POST", "/topics", {"name": "t1", "queues": QUEUES})
        for group, mode in (("g1", "clustering"), ("g2", "broadcasting")):
            broker.ok("POST", "/groups", {"name": group, "mode": mode})
            broker.ok(
                "POST",
                f"/groups/{group}/subscriptions",
                {"topic": "t1", "start": "earliest"},
            )
            broker.ok("PATCH", f"/groups/{group}/subscriptions/t1", {"retry_delays_s": [1]})
        self.ids: dict[str, int] = {}
        self.versions: dict[tuple[str, str], int] = {}
        self.told: dict[str, dict[str, Any]] = {}  # by group and queue as the runs call it
        self.settings = itertools.count(51)
        self.group = "g1"

    def ask(self, path: str, request: dict[str, Any]) -> dict[str, Any]:
        return self.wire.call(path, request)

    def play(self, call: dict[str, Any]) -> None:
        """Make a call, and check its answer."""
        name = call["call"].rstrip("/").rpartition("/")[2]
        step = getattr(self, f"_{name}", None)
        answer = step(call) if step else self.ask(call["call"], call["request"])
        shape = {
            key: part
            for key, part in call["answer"].items()
            if key not in ("state", "meta", "queue")
        }
        assert_shape(shape, answer, name)

    def _register(self, call: dict[str, Any]) -> dict[str, Any]:
        answer = self.ask(call["call"], call["request"])
        self.ids[call["client"]] = answer["id"]
        return answer

    def _registerConsumerGroup(self, call: dict[str, Any]) -> dict[str, Any]:
        request = call["request"]
        answer = self.ask(
            call["call"], request | {"consumerId": self.ids[request["consumerId"]]}
        )
        for group in request["consumerGroupNames"]:
            self.group = group
            self.versions[request["consumerId"], group] = 0
        self.settle()
        return answer

    def _deRegister(self, call: dict[str, Any]) -> dict[str, Any]:
        client = call["request"]["id"]
        answer = self.ask(
            call["call"], call["request"] | {"id": self.ids.get(client, NOBODY)}
        )
        self.versions = {key: one for key, one in self.versions.items() if key[0] != client}
        self.settle()
        return answer

    def _heartbeat(self, call: dict[str, Any]) -> dict[str, Any]:
        request = call["request"]
        return self.ask(
            call["call"],
            request | {"consumerId": self.ids.get(request["consumerId"], NOBODY)},
        )

    def settle(self) -> None:
        """Let all clients poll until none has news."""

        def news() -> list[dict[str, Any]]:
            return [found for key in list(self.versions) if (found := self.poll(*key))]

        until(lambda: not news())

    def poll(self, client: str, group: str) -> dict[str, Any]:
        """The group as a poll with the newest version tells it, {} without news."""
        body = {
            "consumerId": self.ids[client],
            "consumerGroupVersion": {group: self.versions[client, group]},
        }
        answer = self.ask("/api/client/consumer/getConsumerGroupPolling", body)
        return self.take(client, answer).get(group, {})

    def take(self, client: str, answer: dict[str, Any]) -> dict[str, Any]:
        found: dict[str, Any] = answer["consumerGroups"]
        for group, told in found.items():
            self.versions[client, group] = told["meta"]["version"]
            for one in told["queues"].values():
                self.told[self.label(group, one)] = one
        return found

    def label(self, group: str, one: dict[str, Any]) -> str:
        """A queue as the runs call it: by its group, and the order among those of its
        topic.
        """
        raw = one["queueId"] & (1 << 31) - 1
        if one["topicType"] == 1:
            return f"{group} t1 {[row['queue'] for row in self.topic['queues']].index(raw)}"
        return f"{group} fail {raw % 2}"

    def _getConsumerGroupPolling(self, call: dict[str, Any]) -> dict[str, Any]:
        request, shape = call["request"], call["answer"]
        client, (group, version) = (
            request["consumerId"],
            next(iter(request["consumerGroupVersion"].items())),
        )
        known = self.versions.get((client, group), 0) if version else 0
        body = request | {
            "consumerId": self.ids[client],
            "consumerGroupVersion": {group: known},
        }
        if shape["state"] == "deleted" or (client, group) not in self.versions:
            answer = self.ask(call["call"], body | {"consumerId": NOBODY})
            assert answer["consumerDeleted"] == 1
            return answer
        if shape["state"] == "data" and version:
            path = f"/groups/{group}/subscriptions/t1"
            self.broker.ok("PATCH", path, {"max_poll_records": next(self.settings)})
            answer = until(
                lambda: (found := self.ask(call["call"], body))["consumerGroups"] and found
            )
        else:
            answer = self.ask(call["call"], body)
        found = self.take(client, answer)
        assert set(found) == ({group} if shape["state"] == "data" else set())
        for told in found.values():
            assert told["meta"]["name"] == group
            assert_shape(shape["meta"], told["meta"], "meta")
            assert told["queues"]
            for key, one in told["queues"].items():
                assert key == str(one["queueId"])
                wanted = {
                    name: part for name, part in shape["queue"].items() if name != "tag"
                }
                assert_shape(wanted, one, "queue")
        return answer

    def _pullData(self, call: dict[str, Any]) -> dict[str, Any]:
        request, group = (
            call["request"],
            call["request"].get("consumerGroupName") or self.group,
        )
        kind = request["queueId"].partition(" ")[0]
        wanted = bool(call["answer"]["msgs"])
        if kind == "fail" and group == "g2":
            # instances have no retry topics
            return {**self.ask("/api/client/tool/addLog", {}), "msgs": []}
        if wanted and kind == "fail":
            self.fail(group, call)
            return until(lambda: self.pull_retries(group))
        label = f"{group} {request['queueId']}"
        while not wanted and self.pull(label)["msgs"]:
            pass
        if wanted:
            self.send(label)
        return self.pull(label, request, wait=wanted)

    def pull_retries(self, group: str) -> dict[str, Any] | None:
        """The answer that has messages, of the queues of failed messages; it is not known
        which gets them.
        """
        answers = [self.pull(f"{group} fail {number}") for number in (0, 1)]
        return next((one for one in answers if one["msgs"]), None)

    def send(self, label: str) -> None:
        queue = self.topic["queues"][int(label.split()[-1])]["queue"]
        message = {
            "body": "text",
            "key": "b1",
            "tag": "red",
            "trace_id": "trace",
            "headers": {"h": "1"},
        }
        self.broker.ok(
            "POST", "/topics/t1/messages", {"messages": [{**message, "queue": queue}]}
        )

    def pull(
        self, label: str, request: dict[str, Any] | None = None, *, wait: bool = False
    ) -> dict[str, Any]:
        """Pull from where the client is; what it gets counts as read."""
        one = self.told[label]
        start = one.setdefault("read", one["offset"])
        body = {
            **(request or {}),
            "queueId": one["queueId"],
            "offsetStart": start,
            "offsetEnd": start + 50,
        }

        def ask() -> dict[str, Any] | None:
            answer = self.ask("/api/client/consumer/pullData", body)
            return answer if answer["msgs"] or not wait else None

        answer = until(ask)
        one["read"] = max([start, *(message["id"] for message in answer["msgs"])])
        return answer

    def fail(self, group: str, call: dict[str, Any]) -> None:
        """Report a message as failed, so that a retry comes."""
        label = f"{group} t1 0"
        self.send(label)
        failed = self.pull(label, wait=True)["msgs"][-1]
        body = {
            "queueId": self.told[label]["queueId"],
            "failMsg": {"msgs": [failed], "topicName": "g1_t1_fail"},
        }
        assert (
            self.ask("/api/client/consumer/publishAndUpdateResultFailMsg", body)["suc"]
            is True
        )

    def _publishAndUpdateResultFailMsg(self, call: dict[str, Any]) -> dict[str, Any]:
        request, shape = json.loads(json.dumps(call["request"])), call["answer"]
        label = f"{self.group} {request['queueId']}"
        if self.group == "g2":
            # as above
            return {
                **self.ask("/api/client/tool/addLog", {}),
                "suc": shape["suc"] == "bool",
            }
        request["queueId"] = self.told[label]["queueId"]
        for message in (request.get("failMsg") or {}).get("msgs", ()):
            self.send(label)
            message["id"] = self.pull(label, wait=True)["msgs"][-1]["id"]
        answer = self.ask(call["call"], request)
        assert answer["suc"] is True
        return answer

    def _commitOffset(self, call: dict[str, Any]) -> dict[str, Any]:
        offsets = []
        for given in call["request"]["queueOffsets"]:
            group = given.get("consumerGroupName") or self.group
            one = self.told.get(f"{group} {given['queueOffsetId']}")
            # a queue of failures of a broadcasting group is none of ours
            if one is not None:
                at = {
                    "queueOffsetId": one["queueOffsetId"],
                    "offsetVersion": one["offsetVersion"],
                }
                offsets.append(
                    given | at | {"offset": one.get("read", 0) if given["offset"] else 0}
                )
        answer = self.ask(call["call"], call["request"] | {"queueOffsets": offsets})
        assert answer["suc"] is True
        self.settle()
        return answer

    def _publish(self, call: dict[str, Any]) -> dict[str, Any]:
        request = json.loads(json.dumps(call["request"]))
        for message in request.get("msgs", ()):
            partition = message.get("partitionInfo") or {}
            if partition.get("queueId") == "t1 0":
                partition["queueId"] = self.topic["queues"][0]["queue"]
        return self.ask(call["call"], request)


@pytest.fixture
def run(
    java_let_in: None, failure_node: str, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Run]:
    for name in ("HOLD_S", "START_HOLD_S", "ERROR_HOLD_S"):
        monkeypatch.setattr(polling, name, 0.02)
    monkeypatch.setattr(reading, "HOLD_MS", 50)
    for name in ("IDLE_HOLD_S", "COMMIT_HOLD_S"):
        monkeypatch.setattr(reading, name, 0.0)
    made = Run(broker)
    yield made
    made.wire.close()


@pytest.mark.parametrize("name", RUNS)
def test_our_answers_have_what_a_recorded_client_read(run: Run, name: str) -> None:
    for number in RUNS[name]:
        run.play(RECORDED[number])


def test_a_field_that_is_missing_or_of_another_type_is_noticed() -> None:
    assert_shape(
        {"id": "int", "msgs": [{"id": "int"}]}, {"id": 1, "msgs": [{"id": 2}]}, "x"
    )
    for wrong in (
        {"msgs": []},
        {"id": "1", "msgs": []},
        {"id": 1, "msgs": [{}]},
        {"id": None, "msgs": []},
    ):
        with pytest.raises(AssertionError):
            assert_shape({"id": "int", "msgs": [{"id": "int"}]}, wrong, "x")
