"""Parts of the kombu transport that need no broker: options, URLs, names, bindings, times."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import kombu
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kombu.transport.virtual.exchange import TopicExchange

from catmq_client.contrib.kombu import messages
from catmq_client.contrib.kombu.names import TopicNames
from catmq_client.contrib.kombu.options import (
    Address,
    TransportOptions,
    parse_address,
    parse_options,
)
from catmq_client.contrib.kombu.registry import Registry, Table, is_match
from catmq_client.contrib.kombu.transport import Transport
from catmq_client.errors import ConnectFailed, OptionError

NOW = datetime(2026, 11, 24, 12, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("given", "wrong"),
    [
        ({"lease_s": 4}, "lease_s=4: write a whole number, 5 to 3600"),
        ({"lease_s": True}, "lease_s=True: write a whole number"),
        ({"lease_s": "60"}, "write a whole number"),
        ({"leases": 60}, "leases is not an option: did you mean lease_s"),
        (
            {"visibility_timeout": 3600},
            "visibility_timeout is not an option: did you mean lease_s",
        ),
        ({"native_eta": "yes"}, "write True or False"),
        ({"priority_steps": 3}, "write a list of priorities from 0 to 9"),
        ({"priority_steps": [0, 10]}, "write a list of priorities from 0 to 9"),
        ({"priority_steps": []}, "write a list of priorities from 0 to 9"),
        ({"verify": 3}, "the path of a file of CA certificates"),
        ({"group": ""}, "write the name of a share group"),
    ],
)
def test_a_wrong_option_is_named_with_its_remedy(given: dict[str, Any], wrong: str) -> None:
    with pytest.raises(
        OptionError, match="broker_transport_options: .*" + wrong.replace("(", r"\(")
    ):
        parse_options(given)


def test_options_of_kombu_pass() -> None:
    assert parse_options({"max_retries": 3, "interval_start": 0}) == TransportOptions()


def test_a_priority_goes_to_the_highest_step_that_is_not_above_it() -> None:
    options = parse_options({"priority_steps": [6, 3]})
    assert [options.step(priority) for priority in (0, 3, 5, 6, 9)] == [3, 3, 3, 6, 6]
    assert TransportOptions().step(9) == 0


@pytest.mark.parametrize(
    ("url", "wrong"),
    [
        ("redis://x", "the scheme is 'redis'"),
        ("catmq://key@host", "behind a colon"),
        ("catmq://:key@host:port", "write catmq://:APIKEY@host"),
    ],
)
def test_a_wrong_url_is_refused(url: str, wrong: str) -> None:
    with pytest.raises(OptionError, match=wrong):
        parse_address(url)


def test_urls_have_defaults_and_tls() -> None:
    assert parse_address("catmq://") == Address("http://localhost:8000", None, "celery")
    assert parse_address("catmqs://:a%2Fb@broker/").url == "https://broker:8000"
    assert parse_address("catmqs://:a%2Fb@broker/").api_key == "a/b"
    assert parse_address("catmq://[::1]:9").url == "http://[::1]:9"


def test_names_of_topics_are_different_for_different_queues() -> None:
    names = TopicNames("shop")
    queues = ("mails", "a/b", "a_x2f_b", "_bindings", "_log.x", "x_fail", "ä", "A b")
    topics = [names.topic(queue) for queue in queues]
    topics += [
        names.topic("mails", step=6),
        names.log_topic("mails"),
        names.log_topic(""),
        names.bindings,
    ]
    assert len({*topics}) == len(topics)
    assert all(
        topic.startswith("shop.") and topic.isascii() and " " not in topic
        for topic in topics
    )
    assert not any(topic.endswith("_fail") for topic in topics)


def test_bindings_follow_the_entries_of_the_log() -> None:
    table = Table()
    for entry in (
        {"op": "exchange", "exchange": "e", "type": "topic"},
        {"op": "queue", "queue": "q"},
        {"op": "bind", "exchange": "e", "key": "a.*", "queue": "q"},
        {"op": "bind", "exchange": "e", "key": "#", "queue": "r"},
        {"op": "of a later release", "exchange": "e"},
    ):
        table.apply(entry)
    assert (table.targets("e", "a.b"), table.targets("e", "b")) == (["q", "r"], ["r"])
    assert (table.targets("", "q"), table.targets("", "r")) == (["q"], [])
    table.apply({"op": "unbind", "exchange": "e", "key": "a.*", "queue": "q"})
    assert table.targets("e", "a.b") == ["r"]
    table.apply({"op": "delete_queue", "queue": "r"})
    assert table.targets("e", "a.b") == []


class Stored:
    """A log of bindings in memory."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.is_away = False

    def read(self, offset: int) -> tuple[list[bytes], int]:
        if self.is_away:
            raise ConnectFailed("away")
        return self.bodies[offset:], len(self.bodies)


def test_only_what_is_new_is_recorded_and_others_see_it() -> None:
    log = Stored()
    one, two = Registry(log.read, log.bodies.append), Registry(log.read, log.bodies.append)
    entry = {"op": "queue", "queue": "q"}
    for registry in (one, two, one):
        registry.record(
            entry, is_new=lambda table, entry: entry["queue"] not in table.queues
        )
    assert [json.loads(body) for body in log.bodies] == [entry]
    assert two.table().queues == {"q"}


def test_bindings_of_a_moment_ago_do_while_brokers_are_away() -> None:
    log = Stored()
    registry = Registry(log.read, log.bodies.append)
    registry.record({"op": "queue", "queue": "q"}, is_new=lambda table, _: not table.queues)
    log.is_away = True
    assert registry.table(max_age_s=0.0).queues == {"q"}
    with pytest.raises(ConnectFailed):
        Registry(log.read, log.bodies.append).table()


def test_an_entry_that_cannot_be_read_is_left_out() -> None:
    log = Stored()
    log.bodies += [
        b"\xff",
        b"[]",
        b"[" * 100_000,
        b'{"op": "bind"}',
        b'{"op": "queue", "queue": []}',
    ]
    log.bodies += [
        b'{"op": "bind", "exchange": "e", "key": 1, "queue": "q"}',
        b'{"op": "queue", "queue": "q"}',
    ]
    assert Registry(log.read, log.bodies.append).table().queues == {"q"}


def task(**headers: Any) -> messages.Payload:
    return {
        "body": "",
        "headers": {"task": "t", **headers},
        "properties": {"delivery_info": {}},
    }


@pytest.mark.parametrize(
    "eta", [None, "", "soon", 5, (NOW - timedelta(hours=1)).isoformat()]
)
def test_without_an_eta_to_come_nothing_is_delayed(eta: object) -> None:
    assert messages.delay_arguments(task(eta=eta), NOW) == {}


def test_an_eta_without_a_zone_is_utc() -> None:
    assert messages.delay_arguments(task(eta="2026-11-24T13:00:00"), NOW) == {
        "deliver_at": NOW + timedelta(hours=1)
    }


def test_a_message_expires_after_it_was_stored() -> None:
    payload = task()
    payload["properties"]["expiration"] = "2000"
    stored_ms = int(NOW.timestamp() * 1000)
    assert not messages.is_expired(payload, stored_ms, NOW + timedelta(seconds=1.9))
    assert messages.is_expired(payload, stored_ms, NOW + timedelta(seconds=2))
    payload["properties"]["expiration"] = "never"
    assert not messages.is_expired(payload, stored_ms, NOW + timedelta(days=1))


def test_what_is_no_json_is_refused_by_name() -> None:
    with pytest.raises(OptionError, match="headers and properties of a message are JSON"):
        messages.encode(task(when=object()))


def test_headers_keep_times_and_properties_of_nobody_are_left_out() -> None:
    payload = task(when=NOW)
    payload["properties"] |= {"priority": 3, "signal": object()}
    found = messages.decode(messages.encode(payload))
    assert found["headers"]["when"] == NOW
    assert found["properties"] == {"priority": 3, "delivery_info": {}}


words = st.lists(st.sampled_from(["a", "b", "ab", "", "*", "#"]), max_size=5).map(".".join)


@given(pattern=words, key=words)
def test_topic_patterns_match_as_in_kombu(pattern: str, key: str) -> None:
    kombus = TopicExchange(None)
    wanted = bool(kombus._match(kombus.key_to_pattern(pattern), key))
    assert is_match("topic", pattern, key) is wanted


def test_a_pattern_of_many_wildcards_is_matched_at_once() -> None:
    assert not is_match("topic", ".".join("#" * 60), "." * 50)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=5,
)
SENT = {
    "body": "W1tdLCB7fSwge31d",
    "content-type": "application/json",
    "content-encoding": "utf-8",
    "headers": {
        "task": "t",
        "id": "1",
        "eta": None,
        "expires": None,
        "timelimit": [1, None],
        "retries": 0,
    },
    "properties": {
        "body_encoding": "base64",
        "delivery_info": {"exchange": "", "routing_key": "q"},
        "priority": 0,
        "expiration": None,
        "correlation_id": "1",
    },
}


@st.composite
def altered_messages(draw: st.DrawFn) -> Any:
    """A task message in which one to three values are others, are missing or have been
    added.
    """
    message = json.loads(json.dumps(SENT))
    for _ in range(draw(st.integers(1, 3))):
        place = draw(
            st.sampled_from(
                [(), ("headers",), ("properties",), ("properties", "delivery_info")]
            )
        )
        target = message
        for name in place:
            inner = target.get(name)
            target = inner if isinstance(inner, dict) else target
        name = (
            draw(st.sampled_from(sorted(target)) | st.text(max_size=3)) if target else "x"
        )
        target[name] = draw(json_values)
        if draw(st.booleans()):
            del target[name]
    return message


channel = kombu.Connection("memory://").channel()


@settings(deadline=None)
@given(altered_messages() | json_values)
def test_a_message_of_any_shape_is_refused_or_can_be_delivered(message: Any) -> None:
    try:
        payload = messages.decode(json.dumps(message).encode())
    except messages.WrongMessage:
        return
    (
        messages.search_fields(payload),
        messages.delay_arguments(payload, NOW),
        messages.parse_priority(payload),
    )
    messages.is_expired(payload, 0, NOW)
    info = payload["properties"]["delivery_info"]
    hash(
        (
            info.get("exchange"),
            info.get("routing_key"),
            payload["properties"].get("correlation_id"),
        )
    )
    payload["properties"]["delivery_tag"] = "1"
    assert channel.Message(payload, channel=channel).delivery_tag == "1"
    assert messages.decode(messages.encode(payload))["properties"] is not None


@pytest.mark.parametrize(
    "body",
    [
        b"\xff",
        b"[" * 100_000,
        b'{"properties": {"x": ' + b"9" * 5_000 + b"}}",
        b'{"properties": 5}',
        b'{"properties": {"delivery_info": 5}}',
        b'{"properties": {}, "headers": []}',
        b'{"properties": {}, "headers": {"task": ["t"]}}',
        b'{"properties": {}, "headers": {"task": "t", "timelimit": "ab"}}',
        b'{"properties": {}, "headers": {"task": "t", "timelimit": [Infinity, 1]}}',
        b'{"properties": {"body_encoding": "base64"}, "body": "abc"}',
        b'{"properties": {"body_encoding": "rot13"}, "body": "abc"}',
        b'{"properties": {}, "body": {"a": 1}}',
        b'{"properties": {"x": {"__type__": "uuid", "__value__": {"y": 1}}}}',
        b'{"properties": {}, "headers": {"x": ' + b"[" * 500 + b"]" * 500 + b"}}",
    ],
)
def test_a_body_of_another_shape_is_refused(body: bytes) -> None:
    with pytest.raises(messages.WrongMessage):
        messages.decode(body)


def test_half_of_a_character_arrives_as_it_was() -> None:
    sent = task(argsrepr="('\ud83d',)", note="é")
    assert messages.decode(messages.encode(sent))["headers"] == sent["headers"]
    assert messages.search_fields(task(id="\ud83d"))["trace_id"] == "?"


@pytest.mark.parametrize(
    ("rooms", "room"),
    [([10, 20], 10), ([20, 10], 10), ([None, 3], 3), ([None], 10), ([40], 40), ([0, 7], 7)],
)
def test_the_channel_with_the_least_room_limits_the_lease(
    rooms: list[int | None], room: int
) -> None:
    transients = SimpleNamespace(has=lambda queue: False)

    class Connection(Transport):
        cluster = SimpleNamespace(transients=transients)  # type: ignore[assignment]

    connection = object.__new__(Connection)
    connection.channels = [
        SimpleNamespace(
            consumed_queues=lambda number=number: [f"q{number}"],
            prefetch_room=lambda free=free: free,
        )
        for number, free in enumerate(rooms)
    ]
    queues = [f"q{number}" for number, free in enumerate(rooms) if free != 0]
    assert connection._demand() == (queues, room)
