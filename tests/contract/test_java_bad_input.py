"""Wrong input of Java clients: an answer that they understand, and nothing is asked again
for ever.
"""

from __future__ import annotations

import gzip
import http.client
import json
import time
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

import pytest

from brokerapi.http import longpoll
from brokerapi.java import endpoint, failing, holds, joining, polling, reading, sending
from metadata.cache import snapshot
from metadata.config import config
from metadata.limits.places import Places
from metadata.rules.membership import addresses
from tests.support.broker import Broker
from tests.support.java_client import CONSUMER, META, Failed, Wire
from tests.support.waiting import until

PUBLISH, POLL, PULL = (
    CONSUMER + "publish",
    CONSUMER + "getConsumerGroupPolling",
    CONSUMER + "pullData",
)
COMMIT, JOIN, FAIL = (
    CONSUMER + name
    for name in ("commitOffset", "registerConsumerGroup", "publishAndUpdateResultFailMsg")
)
NOWHERE = {"queueId": 1 << 40 | 7, "offsetStart": 0, "offsetEnd": 50}


@pytest.fixture
def wire(java_let_in: None, broker: Broker, queue: int) -> Any:
    broker.ok("POST", "/groups", {"name": "readers"})
    broker.ok("POST", "/groups", {"name": "sharers", "mode": "share"})
    made = Wire(broker.url)
    yield made
    made.close()


def raw(
    broker: Broker, method: str, path: str, body: bytes, **headers: str
) -> tuple[int, bytes]:
    """Status and body of any request."""
    parts = urlsplit(broker.url)
    connection = http.client.HTTPConnection(
        parts.hostname or "", parts.port or 80, timeout=10
    )
    try:
        connection.request(
            method, path, body, {"Content-Type": "application/json", **headers}
        )
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


@pytest.mark.parametrize(
    ("path", "body", "words"),
    [
        (
            PUBLISH,
            {"topicName": "nope", "msgs": [{"body": "x"}]},
            "Topic nope does not exist",
        ),
        (PUBLISH, {"topicName": None, "msgs": [{"body": "x"}]}, "topicName"),
        (PUBLISH, {"topicName": "single", "msgs": None}, "msgs"),
        (PUBLISH, {"topicName": "single", "msgs": [None]}, "msgs"),
        (PUBLISH, {"topicName": "single", "msgs": "x"}, "msgs"),
        (
            PUBLISH,
            {"topicName": "single", "msgs": [{"body": "x" * (1 << 20) + "x"}]},
            "body",
        ),
        (
            PUBLISH,
            {"topicName": "single", "msgs": [{"body": "x", "bizId": "k" * 300}]},
            "key",
        ),
        (
            PUBLISH,
            {
                "topicName": "single",
                "msgs": [
                    {"body": "x", "partitionInfo": {"queueId": 9999, "strictMode": 1}}
                ],
            },
            "9999",
        ),
        (CONSUMER + "register", {"name": ""}, "name"),
        (CONSUMER + "register", {"name": None}, "name"),
        (
            JOIN,
            {"consumerId": 0, "consumerName": "a|1|2|3", "consumerGroupNames": {}},
            "consumerId",
        ),
        (
            JOIN,
            {"consumerId": None, "consumerName": "a|1|2|3", "consumerGroupNames": {}},
            "consumerId",
        ),
        (
            JOIN,
            {
                "consumerId": 7,
                "consumerName": "a|1|2|3",
                "consumerGroupNames": {"nope": []},
            },
            "nope",
        ),
        (
            JOIN,
            {
                "consumerId": 7,
                "consumerName": "a|1|2|3",
                "consumerGroupNames": {"sharers": []},
            },
            "share",
        ),
        (PULL, {"queueId": None, "offsetStart": 0, "offsetEnd": 50}, "queueId"),
        (PULL, {"queueId": 7, "offsetStart": 0, "offsetEnd": 50}, "queueId"),
        (PULL, {**NOWHERE, "offsetStart": -1}, "offsetStart"),
        (PULL, {**NOWHERE, "offsetEnd": None}, "offsetEnd"),
        (PULL, {**NOWHERE, "queueId": "many"}, "queueId"),
        (FAIL, {"queueId": 1 << 40, "failMsg": {"msgs": [{"id": 1}]}}, "queueId"),
        (PULL, {**NOWHERE, "queueId": 1 << 63}, "queueId"),
        (COMMIT, {"queueOffsets": [{"queueOffsetId": 1 << 64}]}, "queueOffsetId"),
        (CONSUMER + "deRegister", {"id": -(1 << 64)}, "id"),
        (META + "getTopic", {"consumerGroupName": "nope"}, "nope"),
        (META + "getTopicQueueIds", {"topicNames": ["nope"]}, "nope"),
        (CONSUMER + "getMessageCount", {"consumerGroupName": None}, "Group"),
        ("/api/server/meta/getMeta", {}, "getMeta"),
        ("/api/client/tool/rb", {"consumerGroupNames": ["readers"]}, "rb"),
    ],
)
def test_what_is_wrong_is_refused_with_a_message_and_not_asked_again(
    wire: Wire, path: str, body: dict[str, Any], words: str
) -> None:
    answer = wire.call(path, body)  # one try: any status but 200 would raise Failed
    assert answer["suc"] is False and answer["code"] == "0"
    assert words in answer["msg"]


@pytest.mark.parametrize(
    ("path", "body", "fields"),
    [
        (PULL, NOWHERE, {"msgs": []}),
        (COMMIT, {"queueOffsets": None, "flag": None}, {}),
        (
            COMMIT,
            {
                "queueOffsets": [
                    None,
                    {"queueOffsetId": None, "offsetVersion": None, "offset": None},
                ]
            },
            {},
        ),
        (
            COMMIT,
            {"queueOffsets": [{"queueOffsetId": 1 << 40, "offsetVersion": 1, "offset": 0}]},
            {},
        ),
        (
            COMMIT,
            {
                "queueOffsets": [
                    {"queueOffsetId": 1 << 40, "offsetVersion": 1, "offset": -5}
                ]
            },
            {},
        ),
        (
            COMMIT,
            {
                "queueOffsets": [{"queueOffsetId": -1, "offsetVersion": 1, "offset": 5}],
                "flag": 1,
            },
            {},
        ),
        (FAIL, {"queueId": None, "failMsg": None, "ids": None}, {}),
        (FAIL, {"queueId": 1, "failMsg": {"msgs": [None, {"id": None}, {"id": 0}]}}, {}),
        (CONSUMER + "deRegister", {"id": None}, {}),
        (CONSUMER + "deRegister", {"id": 77}, {}),
        (
            CONSUMER + "heartbeat",
            {"consumerId": None, "asyn": None},
            {"deleted": 0, "bakUrl": ""},
        ),
        (CONSUMER + "heartbeat", {"consumerId": 77, "asyn": 1}, {"deleted": 1}),
        (CONSUMER + "heartbeat", {"consumerId": 1 << 62, "asyn": 1}, {"deleted": 1}),
        (
            "/api/client/tool/sendMail",
            {"subject": "s", "content": "c" * 100_000, "type": None},
            {},
        ),
        ("/api/client/tool/addOpLog", {"content": "a\nb"}, {}),
        (META + "getMetaGroup", {}, {"brokerIpG1": [], "metricUrl": ""}),
    ],
)
def test_what_is_odd_and_harmless_is_answered_as_done(
    wire: Wire, path: str, body: dict[str, Any], fields: dict[str, Any]
) -> None:
    answer = wire.call(path, body)
    assert answer["suc"] is True
    assert {name: answer[name] for name in fields} == fields


@pytest.mark.parametrize(
    "versions", [{"readers": 3}, {"foreign": 0}, {"readers": None}, {}, None]
)
def test_polls_that_have_nothing_to_wait_for_are_held_back(
    wire: Wire, versions: Any
) -> None:
    begun = time.monotonic()
    answer = wire.call(POLL, {"consumerId": 77, "consumerGroupVersion": versions})
    assert answer["consumerDeleted"] == 1
    assert time.monotonic() - begun > 1


def test_a_poll_that_cannot_be_read_is_held_back_too(wire: Wire) -> None:
    begun = time.monotonic()
    answer = wire.call(POLL, {"consumerId": "x", "consumerGroupVersion": {}})
    assert answer["suc"] is False
    assert time.monotonic() - begun > 1


def test_a_body_above_65535_bytes_and_one_without_text_are_stored(
    wire: Wire, broker: Broker
) -> None:
    messages = [
        {"id": 0, "body": "x" * 70_000},
        {"id": 0, "body": None},
        {"id": 0, "head": {"h": None}},
    ]
    assert wire.call(PUBLISH, {"topicName": "single", "msgs": messages})["suc"] is True


def test_a_request_of_16_mb_is_taken_and_a_larger_one_refused(
    wire: Wire, broker: Broker, queue: int
) -> None:
    # more than one send takes
    many = [{"id": 0, "body": "x" * 12_000} for _ in range(1_300)]
    assert wire.call(PUBLISH, {"topicName": "single", "msgs": many})["suc"] is True
    shown = broker.ok("GET", "/topics/single/queues")["queues"]
    assert shown[0]["head"] == 1_300
    status, text = raw(broker, "POST", PUBLISH, b"", **{"Content-Length": str(17 << 20)})
    assert status == 200 and json.loads(text)["suc"] is False


@pytest.mark.parametrize(
    "path", [PUBLISH + "/", "/" + PUBLISH, "/api//client/consumer//publish//"]
)
def test_slashes_too_many_do_not_count(wire: Wire, path: str) -> None:
    assert wire.call(path, {"topicName": "single", "msgs": [{"body": "x"}]})["suc"] is True


def test_numbers_may_be_text_and_unknown_fields_are_left_out(wire: Wire) -> None:
    answer = wire.call(CONSUMER + "deRegister", {"id": "77", "unknown": {"x": 1}})
    assert answer["suc"] is True


@pytest.mark.parametrize("body", [b"", b"{", b"null", b"[]", b"\xff", b"{" * 100_000])
def test_a_body_that_is_no_object_is_refused(
    wire: Wire, broker: Broker, body: bytes
) -> None:
    status, text = raw(broker, "POST", PUBLISH, body)
    assert status == 200 and json.loads(text)["suc"] is False


def test_clients_of_other_networks_are_told_why_they_are_not_let_in(
    wire: Wire, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(endpoint, "_networks", addresses.parse_networks(["10.0.0.0/8"]))
    for path in (
        PUBLISH,
        PULL,
        COMMIT,
        JOIN,
        FAIL,
        CONSUMER + "register",
        META + "getTopic",
    ):
        answer = wire.call(path, {})
        assert answer["suc"] is False and "CATMQ_JAVA_NETWORKS" in answer["msg"]
    assert b"CATMQ_JAVA_NETWORKS" in raw(broker, "GET", "/api/client/tool/getIp", b"")[1]


def test_strangers_and_refusals_without_a_place_hold_no_thread(
    wire: Wire, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(polling, "ERROR_HOLD_S", 60.0)  # raw() gives up after 10 s
    monkeypatch.setattr(longpoll, "_places", Places(most=0, most_per_caller=0))
    monkeypatch.setattr(holds, "_short_places", Places(most=0, most_per_caller=0))
    deleted = raw(broker, "POST", POLL, b'{"consumerId": 77}')
    assert json.loads(deleted[1])["consumerDeleted"] == 1
    assert json.loads(raw(broker, "POST", POLL, b"[")[1])["suc"] is False
    monkeypatch.undo()
    monkeypatch.setattr(polling, "ERROR_HOLD_S", 60.0)
    monkeypatch.setattr(endpoint, "_networks", addresses.parse_networks(["10.0.0.0/8"]))
    begun = time.monotonic()
    status, text = raw(broker, "POST", POLL, b'{"consumerId": 77}')
    assert status == 403 and b"CATMQ_JAVA_NETWORKS" in text
    assert 0.9 < time.monotonic() - begun < 5, (
        "held, or a client that is no more let in asks twice a second"
    )
    monkeypatch.setattr(holds, "_strangers", Places(most=0, most_per_caller=0))
    begun = time.monotonic()
    assert raw(broker, "POST", POLL, b'{"consumerId": 77}')[0] == 403
    assert time.monotonic() - begun < 0.9


def test_its_address_is_told_to_who_is_let_in(wire: Wire, broker: Broker) -> None:
    assert raw(broker, "GET", "/api/client/tool/getIp", b"") == (200, b"127.0.0.1")


def test_an_address_that_asks_too_often_is_told_so_and_loses_no_failed_message(
    wire: Wire, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        endpoint, "config", replace(config, java_requests_per_s=1, workers=1)
    )
    monkeypatch.setattr(endpoint, "_buckets", {})
    body = {"topicName": "single", "msgs": [{"body": "x"}]}
    assert wire.call(PUBLISH, body)["suc"] is True
    refused = wire.call(PUBLISH, body)
    assert refused["suc"] is False and 0 < refused["sleepTime"] <= 1000
    assert "CATMQ_JAVA_REQUESTS_PER_S" in refused["msg"]
    assert wire.call(PULL, NOWHERE)["suc"] is False, (
        "200: two failed pulls end the threads of CatMQ's client"
    )
    with pytest.raises(Failed, match="429"):
        wire.call(META + "getMetaGroup", {})
    assert wire.call(FAIL, {"queueId": 1, "failMsg": None})["suc"] is True, (
        "the client would not ask again"
    )
    monkeypatch.setattr(endpoint, "config", replace(config, java_requests_per_s=0))
    assert wire.call(PUBLISH, body)["suc"] is True


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        (
            PUBLISH,
            {"topicName": "single", "msgs": [{}] * (sending.MOST_MESSAGES + 1)},
            "msgs",
        ),
        (
            FAIL,
            {"queueId": 1, "failMsg": {"msgs": [{}] * (failing.MOST_FAILED + 1)}},
            "failMsg.msgs",
        ),
        (COMMIT, {"queueOffsets": [{}] * (reading.MOST_COMMITTED + 1)}, "queueOffsets"),
        (
            COMMIT,
            {
                "queueOffsets": [
                    {"queueOffsetId": n << 31 | 1} for n in range(reading.MOST_MEMBERS + 1)
                ]
            },
            "queueOffsets",
        ),
        (
            CONSUMER + "heartbeat",
            {"consumerIds": [1] * (joining.MOST_CLIENTS + 1)},
            "consumerIds",
        ),
        (
            POLL,
            {"consumerGroupVersion": dict.fromkeys(map(str, range(201)), 1)},
            "consumerGroupVersion",
        ),
        (
            JOIN,
            {"consumerGroupNames": dict.fromkeys(map(str, range(201)))},
            "consumerGroupNames",
        ),
        (JOIN, {"consumerGroupNames": {"readers": ["t"] * 1_001}}, "consumerGroupNames"),
        (
            META + "getGroupTopic",
            {"consumerGroupNames": ["readers"] * 201},
            "consumerGroupNames",
        ),
        (META + "getTopicQueueIds", {"topicNames": ["single"] * 1_001}, "topicNames"),
        (CONSUMER + "getMessageCount", {"topics": ["single"] * 1_001}, "topics"),
    ],
)
def test_a_list_that_is_too_long_is_refused_by_name(
    *,
    wire: Wire,
    monkeypatch: pytest.MonkeyPatch,
    path: str,
    body: dict[str, Any],
    field: str,
) -> None:
    monkeypatch.setattr(polling, "ERROR_HOLD_S", 0.01)
    answer = wire.call(path, body)
    assert answer["suc"] is False and answer["msg"].startswith(field)


def test_millions_of_values_are_refused_before_they_are_made(
    wire: Wire, broker: Broker
) -> None:
    body = gzip.compress(b'{"topicName":"single","msgs":[' + b"{}," * 1_000_000 + b"{}]}")
    _, text = raw(broker, "POST", PUBLISH, body, **{"Content-Encoding": "gzip"})
    assert "values" in json.loads(text)["msg"]


def test_the_right_to_send_is_asked_before_messages_are_looked_at(
    wire: Wire, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sending, "_new_message", None)
    answer = wire.call(PUBLISH, {"topicName": "nope", "msgs": [{"body": "x"}]})
    assert "Topic nope does not exist" in answer["msg"]


@pytest.mark.parametrize("path", ["getTopic", "getGroupTopic", "getTopicQueueIds"])
def test_lists_need_a_right_on_what_they_name(
    wire: Wire, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    body = {
        "consumerGroupName": "readers",
        "consumerGroupNames": ["readers"],
        "topicNames": ["single"],
    }
    assert wire.call(META + path, body)["suc"] is True
    monkeypatch.setattr(
        endpoint, "SENDS_AND_READS", {"produce": ("others",), "consume": ("others",)}
    )
    try:
        words = wire.call(META + path, body)["msg"]
    except Failed as error:
        words = str(error)
    assert "403" in words or "lacks the right" in words


def test_a_member_whose_key_lost_the_right_reads_and_commits_no_more(
    wire: Wire, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.ok("POST", "/groups/readers/subscriptions", {"topic": "single"})
    snapshot.refresh()
    java_id = wire.call(CONSUMER + "register", {"name": "10.0.0.5|1|2|80"})["id"]
    joined = {
        "consumerId": java_id,
        "consumerName": "10.0.0.5|1|2|80",
        "consumerGroupNames": {"readers": ["single"]},
    }
    assert wire.call(JOIN, joined)["suc"] is True
    groups = until(
        lambda: wire.call(
            POLL, {"consumerId": java_id, "consumerGroupVersion": {"readers": 0}}
        )["consumerGroups"]
    )
    (queue,) = groups["readers"]["queues"].values()
    calls = {
        PULL: {"queueId": queue["queueId"], "offsetStart": 0, "offsetEnd": 50},
        COMMIT: {
            "queueOffsets": [
                {"queueOffsetId": queue["queueId"], "offsetVersion": 1, "offset": 1}
            ]
        },
        FAIL: {"queueId": queue["queueId"], "failMsg": {"msgs": [{"id": 1}]}},
        POLL: {"consumerId": java_id, "consumerGroupVersion": {"readers": 1}},
        CONSUMER + "heartbeat": {"consumerId": java_id},
    }
    monkeypatch.setattr(endpoint, "SENDS_AND_READS", {"produce": ("*",)})
    monkeypatch.setattr(holds, "SHORT_S", 0.01)
    # a poll a moment ago tells that the client lives, and asked for the right
    polling._last_poll_at.clear()
    for path, body in calls.items():
        status, text = raw(broker, "POST", path, json.dumps(body).encode())
        assert "consume on group readers" in json.loads(text)["msg"], (path, status)
