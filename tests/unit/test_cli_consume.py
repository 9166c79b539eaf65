"""catmq consume: what it prints, when it ends, and that exactly what was flushed is
committed.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from catmq_client import HttpTransport, Producer
from catmq_client.cli import main
from catmq_client.cli.messages.consume import Watch
from catmq_client.errors import ConnectFailed, Forbidden
from catmq_client.testing import FakeBroker
from tests.support.canned import Canned


@pytest.fixture
def broker() -> FakeBroker:
    made = FakeBroker()
    made.create_topic("orders", queues=2)
    return made


def fill(broker: FakeBroker, count: int) -> None:
    with Producer(transport=broker) as producer:
        for number in range(count):
            producer.send_async("orders", f"m{number}", key=f"k{number % 5}")


def done(broker: FakeBroker) -> int:
    return sum(broker.committed("g").values())


def rows(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


CONSUME = ["consume", "orders", "--group", "g"]


def test_each_message_is_an_object_of_the_published_shape(
    broker: FakeBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    with Producer(transport=broker) as producer:
        receipt = producer.send("orders", "hällo", key="k", tag="t", headers={"h": "v"})
    assert main([*CONSUME, "--max", "1"], transport=broker) == 0
    (row,) = rows(capsys)
    stored_at_ms = row.pop("stored_at_ms")
    assert isinstance(stored_at_ms, int)
    assert list(row.items()) == [
        ("topic", "orders"),
        ("queue", receipt.queue),
        ("offset", 0),
        ("message_id", receipt.message_id),
        ("key", "k"),
        ("tag", "t"),
        ("headers", {"h": "v"}),
        ("body", "hällo"),
        ("attempt", row["attempt"]),
    ]


def test_a_body_that_is_no_text_is_printed_as_base64(
    broker: FakeBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    with Producer(transport=broker) as producer:
        producer.send("orders", b"\xff\x00")
    main([*CONSUME, "--max", "1"], transport=broker)
    (row,) = rows(capsys)
    assert row["body_base64"] == "/wA="
    assert "body" not in row


def test_output_body_prints_the_bytes_themselves(
    broker: FakeBroker, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    with Producer(transport=broker) as producer:
        producer.send("orders", b"\xff\x00")
    assert main([*CONSUME, "--max", "1", "--output", "body"], transport=broker) == 0
    assert capsysbinary.readouterr().out == b"\xff\x00\n"


HALF = b'{"x":"\\ud83d"}'  # of an emoji
DEEP = b'{"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}"
RAW = b"\xff\x00\x1b[2J"


@pytest.mark.parametrize(
    ("form", "shown"),
    [
        (
            "json",
            [r"{\"x\":\"\\ud83d\"}", "[[[[", '"body_base64":"/wAbWzJK"', '"body":"good"'],
        ),
        ("table", [r'{"x":"\ud83d"}', "[[[[", "base64:/wAbWzJK", "good"]),
        ("{body.x}", [r"\ud83d", '[JSON too deep] {"x":[[[[', "", ""]),
    ],
)
def test_no_message_stops_the_command(
    broker: FakeBroker, capsys: pytest.CaptureFixture[str], form: str, shown: list[str]
) -> None:
    with Producer(transport=broker) as producer:
        producer.send_batch(
            "orders",
            [{"body": b, "key": "k", "tag": "t"} for b in (HALF, DEEP, RAW, b"good")],
        )
    assert main([*CONSUME, "--limit", "4", "--output", form], transport=broker) == 0
    lines = capsys.readouterr().out.splitlines()[-4:]
    assert all(part in line for part, line in zip(shown, lines, strict=True))
    assert done(broker) == 4


def test_what_was_printed_is_committed_and_the_next_run_goes_on_there(
    broker: FakeBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    fill(broker, 50)
    assert main([*CONSUME, "--max", "20"], transport=broker) == 0
    assert done(broker) == 20
    assert main([*CONSUME, "--idle-timeout", "0.2"], transport=broker) == 0
    assert done(broker) == 50
    assert sorted(row["body"] for row in rows(capsys)) == sorted(
        f"m{number}" for number in range(50)
    )


def test_idle_without_one_message_is_exit_code_3(
    broker: FakeBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*CONSUME, "--idle-timeout", "0.2"], transport=broker) == 3
    assert rows(capsys) == []


def test_a_group_that_begins_at_latest_gets_nothing_old(broker: FakeBroker) -> None:
    fill(broker, 3)
    assert (
        main([*CONSUME, "--from", "latest", "--idle-timeout", "0.2"], transport=broker) == 3
    )
    assert (
        main([*CONSUME, "--from", "earliest", "--idle-timeout", "0.2"], transport=broker)
        == 3
    )


def test_the_group_is_left_at_the_end(broker: FakeBroker) -> None:
    fill(broker, 1)
    main([*CONSUME, "--max", "1"], transport=broker)
    assert broker.seen("DELETE .*/consumers/")


def test_other_topics_of_the_group_are_left_alone(
    broker: FakeBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    other = broker.create_topic("other", queues=2)
    broker.subscribe("g", "other")
    with Producer(transport=broker) as producer:
        for number in range(2000):
            producer.send_async("other", "x", key=str(number))
    fill(broker, 1000)
    assert main([*CONSUME, "--max", "1000", "--idle-timeout", "5"], transport=broker) == 0
    printed = capsys.readouterr()
    assert {json.loads(line)["topic"] for line in printed.out.splitlines()} == {"orders"}
    assert "group g also reads other" in printed.err
    assert [broker.committed("g")[queue.id] for queue in other.queues] == [0, 0]
    assert done(broker) == 1000


def test_an_unknown_topic_is_a_failure_that_names_it(
    broker: FakeBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["consume", "nothing", "--group", "g"], transport=broker) == 4
    assert "nothing" in capsys.readouterr().err


def test_a_missing_right_is_a_failure(
    broker: FakeBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    broker.fail(
        "POST .*/consumers$",
        Forbidden("the key lacks the right consume on group g", status=403),
    )
    assert main(CONSUME, transport=broker) == 5
    assert "right consume on group g" in capsys.readouterr().err


def test_a_broker_that_is_away_is_not_idle(broker: FakeBroker) -> None:
    fill(broker, 5)
    broker.fail("POST .*/consumers$", ConnectFailed("away"), times=2)
    broker.fail("POST .*/pull", ConnectFailed("away"), times=3)
    assert main([*CONSUME, "--idle-timeout", "0.1"], transport=broker) == 0
    assert done(broker) == 5


def test_mode_instance_and_session_timeout_go_with_the_registration(
    broker: FakeBroker,
) -> None:
    options = [
        "--mode",
        "broadcasting",
        "--instance",
        "east",
        "--session-timeout-ms",
        "5000",
    ]
    seen: list[dict[str, Any]] = []

    class Recording:
        def request(
            self, method: str, path: str, *, body: Any = None, **more: Any
        ) -> dict[str, Any]:
            if path.endswith("/consumers"):
                seen.append(dict(body))
                raise Forbidden("enough seen", status=403)
            return broker.request(method, path, body=body, **more)

    assert main([*CONSUME, *options], transport=Recording()) == 5
    told = {name: seen[0][name] for name in ("mode", "instance_id", "session_timeout_ms")}
    assert told == {
        "mode": "broadcasting",
        "instance_id": "east",
        "session_timeout_ms": 5000,
    }


def test_without_them_the_group_stays_as_it_is(broker: FakeBroker) -> None:
    fill(broker, 1)
    assert main([*CONSUME, "--max", "1"], transport=broker) == 0
    body = broker.seen("POST .*/consumers$")[0].body
    assert not {"mode", "instance_id", "session_timeout_ms"} & body.keys()


def test_broadcasting_without_an_instance_says_what_to_give(
    broker: FakeBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*CONSUME, "--mode", "broadcasting"], transport=broker) == 2
    assert "--mode broadcasting needs --instance NAME" in capsys.readouterr().err


class Closing:
    """Standard output whose reader goes away after some lines."""

    def __init__(self, lines: int) -> None:
        self.left = lines
        self.buffer = self

    def write(self, line: bytes) -> None:
        if self.left == 0:
            raise BrokenPipeError
        self.left -= 1

    def flush(self) -> None:
        pass

    def fileno(self) -> int:
        raise OSError

    def isatty(self) -> bool:
        return False


def test_a_closed_pipe_commits_what_was_flushed_and_is_fine(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(broker, 50)
    monkeypatch.setattr("sys.stdout", Closing(7))
    assert main(CONSUME, transport=broker) == 0
    assert done(broker) == 7
    assert broker.seen("DELETE .*/consumers/")


def pull(*states: str) -> dict[str, Any]:
    return {"queues": [{"queue": n, "state": state} for n, state in enumerate(states)]}


@pytest.mark.parametrize(
    ("answer", "quiet"),
    [
        (pull(), True),
        (pull("ok", "stopped"), True),
        (pull("ok", "unavailable"), False),
        (pull("corrupt"), False),
    ],
)
def test_only_queues_that_have_nothing_to_deliver_are_quiet(
    answer: dict[str, Any], quiet: bool
) -> None:
    watch = Watch(Canned({"POST consumers/c/pull": answer}))
    watch.request("POST", "/api/v1/consumers/c/pull")
    assert (watch.idle_s() > 0) == quiet
    assert (watch.away_s() > 0) != quiet


def test_the_consumer_sees_which_brokers_there_are() -> None:
    assert Watch(HttpTransport(["http://a:1", "http://b:1"])).urls == (
        "http://a:1",
        "http://b:1",
    )
    assert Watch(Canned({})).urls == ()
