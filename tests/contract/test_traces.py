"""Traces of handled messages: which are kept, of whom, and that losing them harms nothing."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.db.models import F

from catmq_client import Consumer, Message
from catmq_client.admin.api import Admin
from catmq_client.cli import main
from catmq_client.errors import Unavailable
from catmq_client.http.transport import HttpTransport
from catmq_client.telemetry import traces
from metadata.cache import snapshot
from metadata.groups import handling_traces
from metadata.models import HandlingTrace
from metadata.rules.groups.sampling import is_traced
from tests.support.broker import Broker, problem
from tests.support.forms import browser as browser_of
from tests.support.java_client import JavaClient, Timing
from tests.support.members import Member, reader
from tests.support.waiting import until

TRACE = {"queue": 1, "offset": 0, "outcome": "handled", "ago_ms": 1_000, "took_ms": 40}


flush = handling_traces.flush


@pytest.fixture(autouse=True)
def nothing_waits(metadata_db: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    # The broker's loop, which starts if a test lasts long, would write what the test has just
    # reported, a moment later.
    monkeypatch.setattr(handling_traces, "flush", lambda: 0)
    handling_traces._pending.clear()
    yield
    handling_traces._pending.clear()


@pytest.fixture
def traced(broker: Broker, queue: int) -> Broker:
    """The broker; group `readers` traces every message of topic `single`, which has three."""
    broker.ok("POST", "/groups", {"name": "readers"})
    broker.ok("POST", "/groups/readers/subscriptions", {"topic": "single"})
    broker.ok("PATCH", "/groups/readers/subscriptions/single", {"trace_percent": 100})
    broker.ok(
        "POST",
        "/topics/single/messages",
        {"messages": [{"body": str(n)} for n in range(3)]},
    )
    snapshot.refresh()
    return broker


def report(member: Member, *found: dict[str, Any]) -> Any:
    return member.broker.call("POST", f"{member.path}/traces", {"traces": [*found]})


def shown(broker: Broker, queue: int, offset: int) -> Any:
    return broker.ok("GET", f"/topics/single/traces?message_id={queue}-{offset}")["traces"]


def test_a_report_is_kept_with_member_time_and_outcome(traced: Broker, queue: int) -> None:
    member = reader(traced)
    (stored,) = traced.ok("GET", f"/topics/single/messages?message_id={queue}-0")[
        "messages"
    ]

    assert report(member, {**TRACE, "queue": queue, "ago_ms": 60_000}).status_code == 204
    assert (
        report(
            member, {**TRACE, "queue": queue, "attempt": 1, "outcome": "failed"}
        ).status_code
        == 204
    )
    assert flush() == 2

    first, second = shown(traced, queue, 0)
    assert (first["group"], first["member"], first["outcome"], first["took_ms"]) == (
        "readers",
        "c1",
        "handled",
        40,
    )
    assert (second["attempt"], second["outcome"]) == (1, "failed")
    assert second["at_ms"] - first["at_ms"] in range(57_000, 60_001)
    assert abs(second["at_ms"] - stored["stored_at_ms"]) < 60_000
    assert shown(traced, queue, 1) == []


def test_a_trace_has_the_name_of_the_member_that_reports_it(
    traced: Broker, queue: int
) -> None:
    one, two = reader(traced), Member.join(traced, "readers", name="c2")
    for offset, member in enumerate((two, one)):
        assert (
            report(member, {**TRACE, "queue": queue, "offset": offset}).status_code == 204
        )
    traced.ok("DELETE", two.path)  # what it reported before it left is its own
    assert report(two, {**TRACE, "queue": queue, "offset": 2}).status_code == 204
    pretended = {"member": "c1", "traces": [TRACE]}
    problem(traced.call("POST", f"{one.path}/traces", pretended), 400, "invalid", "member")

    assert flush() == 2
    assert [shown(traced, queue, offset)[0]["member"] for offset in (0, 1)] == ["c2", "c1"]


def test_the_command_shows_who_handled_a_message(
    traced: Broker, queue: int, capsys: pytest.CaptureFixture[str]
) -> None:
    report(reader(traced), {**TRACE, "queue": queue, "attempt": 1, "outcome": "failed"})
    flush()
    client = HttpTransport(traced.url, api_key=traced.api_key)

    assert (
        main(["traces", "single", f"{queue}-0", "--output", "table"], transport=client) == 0
    )
    head, line = [one.split() for one in capsys.readouterr().out.splitlines()]
    assert head == ["GROUP", "MEMBER", "RETRY", "OUTCOME", "AT", "TOOK"]
    assert line[:4] == ["readers", "c1", "1", "failed"]

    assert main(["traces", "single", f"{queue}-1"], transport=client) == 0
    assert "--trace-percent 100" in capsys.readouterr().err


def test_only_the_sample_that_the_group_asks_for_is_kept(
    traced: Broker, queue: int
) -> None:
    member = reader(traced)
    traced.ok("PATCH", "/groups/readers/subscriptions/single", {"trace_percent": 20})
    snapshot.refresh()

    report(member, *({**TRACE, "queue": queue, "offset": offset} for offset in range(200)))
    flush()

    kept = sorted(HandlingTrace.objects.values_list("message_offset", flat=True))
    assert kept == [offset for offset in range(200) if is_traced(queue, offset, 20)]
    assert 15 < len(kept) < 65


def test_client_and_broker_take_the_same_sample() -> None:
    for percent in (0, 1, 50, 100):
        assert [is_traced(7, n, percent) for n in range(2_000)] == [
            traces.is_traced(7, n, percent) for n in range(2_000)
        ]
    assert 60 < sum(is_traced(7, n, 5) for n in range(2_000)) < 140


def test_a_group_that_does_not_read_the_queue_leaves_no_trace_there(
    traced: Broker, queue: int
) -> None:
    traced.ok("POST", "/groups", {"name": "others"})
    stranger = Member.join(traced, "others", name="c9")

    assert report(stranger, {**TRACE, "queue": queue}).status_code == 204
    assert flush() == 0


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({**TRACE, "outcome": "delivered"}, "traces[0].outcome"),
        ({**TRACE, "took_ms": -1}, "traces[0].took_ms"),
        ({**TRACE, "note": 1}, "traces[0].note"),
        ({"queue": 1}, "traces[0].offset"),
    ],
)
def test_a_wrong_report_is_refused_by_its_field(
    traced: Broker, queue: int, wrong: dict[str, Any], field: str
) -> None:
    member = reader(traced)
    problem(report(member, wrong), 400, "invalid", field)
    problem(report(member, *[TRACE] * 501), 400, "invalid", "traces")


def test_what_is_too_much_for_a_process_is_dropped(
    traced: Broker, queue: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handling_traces, "MAX_PENDING", 3)

    report(reader(traced), *({**TRACE, "queue": queue, "offset": n} for n in range(9)))

    assert flush() == 3


def test_old_traces_go_and_a_group_keeps_so_many(traced: Broker, queue: int) -> None:
    report(reader(traced), *({**TRACE, "queue": queue, "offset": n} for n in range(6)))
    flush()
    HandlingTrace.objects.filter(message_offset=0).update(at=F("at") - timedelta(days=4))
    handling_traces.prune()
    assert sorted(HandlingTrace.objects.values_list("message_offset", flat=True)) == [
        1,
        2,
        3,
        4,
        5,
    ]

    rule = handling_traces.prune
    type(rule)(rule.rows, rule.at, rule.days, rule.each, most_each=2)()
    assert sorted(HandlingTrace.objects.values_list("message_offset", flat=True)) == [4, 5]


class NoTraces:
    """The way to a broker on which every report of traces is lost."""

    def __init__(self, broker: Broker) -> None:
        self.transport = HttpTransport(broker.url, api_key=broker.api_key)
        self.lost = 0

    def request(self, method: str, path: str, **more: Any) -> dict[str, Any]:
        if re.search("/traces$", path):
            self.lost += 1
            raise Unavailable("planted")
        return self.transport.request(method, path, **more)


@pytest.mark.parametrize("how", ["run", "poll"])
def test_the_library_reports_what_it_handles_and_retries_by_the_first_place(
    failure_node: str, traced: Broker, queue: int, how: str
) -> None:
    seen: list[bytes] = []
    transport = HttpTransport(traced.url, api_key=traced.api_key)
    settings = {"retries": 1, "retry_delays_s": [0]}
    traced.ok("PATCH", "/groups/readers/subscriptions/single", settings)
    snapshot.refresh()  # or the delay may still be the default of 10 s
    consumer = Consumer(transport=transport, group="readers", name="m1")

    def handle(message: Message) -> None:
        seen.append(message.body)
        if len(seen) >= 4:
            consumer.stop()
        if message.body == b"1" and message.attempt == 0:
            raise ValueError("planted")

    if how == "run":
        consumer.run(handle, threads=1)
    else:
        for message in consumer:
            try:
                handle(message)
            except ValueError as error:
                consumer.fail(message, error)
        consumer.close()
    flush()

    assert sorted(seen) == [b"0", b"1", b"1", b"2"]
    told = [
        (one["member"], one["attempt"], one["outcome"]) for one in shown(traced, queue, 1)
    ]
    first, *rest = told
    assert first == ("m1", 0, "failed")
    # stop() ends iteration in hand
    assert rest == [("m1", 1, "handled")] or (how == "poll" and not rest)
    assert [one["outcome"] for one in shown(traced, queue, 0)] == ["handled"]


def test_lost_reports_harm_nothing(traced: Broker, queue: int) -> None:
    seen: list[bytes] = []
    way = NoTraces(traced)
    consumer = Consumer(transport=way, group="readers", name="m1")

    def handle(message: Message) -> None:
        seen.append(message.body)
        if len(seen) == 3:
            consumer.stop()

    consumer.run(handle, threads=1)

    assert (seen, way.lost) == ([b"0", b"1", b"2"], 1)
    (position,) = traced.ok("GET", "/groups/readers/offsets")["queues"]
    assert (position["committed"], flush()) == (3, 0)


def test_of_java_members_the_delivery_is_known(
    traced: Broker, queue: int, java_let_in: None
) -> None:
    seen: list[Any] = []
    quick = Timing(commit=0.1, first_beat=0.2, beat=1.0)

    def handle(message: dict[str, Any], _queue: int) -> bool:
        seen.append(message["body"])
        return True

    client = JavaClient(traced.url, {"readers": ["single"]}, handle, timing=quick)
    client.start()
    try:
        assert until(lambda: len(seen) == 3)
        flush()
    finally:
        client.close()

    (one,) = shown(traced, queue, 2)
    assert (one["outcome"], one["took_ms"]) == ("delivered", None)
    assert one["member"].startswith("java-")


def test_the_life_of_a_message_tells_who_had_it(traced: Broker, queue: int) -> None:
    member = reader(traced)
    failed = {
        **TRACE,
        "queue": queue,
        "outcome": "failed",
        "ago_ms": 9_000,
        "took_ms": 3_000,
    }
    report(member, failed, {**TRACE, "queue": queue, "attempt": 1})
    flush()

    page = (
        browser_of("ada", administrator=True)
        .get(f"/messages/single/{queue}-0")
        .content.decode()
    )

    life = " ".join(page.partition('class="life"')[2].partition("</ol>")[0].split())
    assert life.index("Failed after 3.0 s") < life.index("Retry 1. Handled in 40 ms")
    assert life.count("readers: delivered to c1") == 2


def test_who_may_not_look_at_the_topic_does_not_see_traces(
    traced: Broker, queue: int
) -> None:
    key = traced.as_key({"produce": ["single"]})
    problem(
        key.call("GET", f"/topics/single/traces?message_id={queue}-0"), 403, "forbidden"
    )
    assert (
        Admin(HttpTransport(traced.url, api_key=traced.api_key)).traces(
            "single", f"{queue}-0"
        )
        == []
    )
