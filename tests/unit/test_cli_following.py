"""catmq tail, catmq lag --watch: a broker that restarts meanwhile, on real sockets."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest

from catmq_client.cli import main, stop
from catmq_client.cli.stop import Stopped
from tests.support.answering import Answer, Server, unused_url

LAG = {
    "group": "billing",
    "lag": 3,
    "lag_ms": None,
    "queues": [{"topic": "orders", "queue": 7, "lag": 3}],
}
QUEUES = [{"queue": number, "node": "main", "low": 0, "head": 1} for number in (7, 8)]


def answered(value: Any) -> Answer:
    return 200, "application/json", json.dumps(value).encode()


def stored(queue: int) -> dict[str, Any]:
    return {
        "offset": 0, "message_id": f"{queue}-0", "key": None, "tag": None, "headers": None,
        "body": f"of {queue}", "trace_id": None, "stored_at_ms": queue, "attempt": 0,
    }  # fmt: skip


class Restarting:
    """A broker that a test ends and starts again at the same address."""

    def __init__(self) -> None:
        self.server = Server()
        self.url, self.answer = self.server.url, self.server.answer

    def end(self) -> None:
        self.server.close()

    def start(self) -> None:
        self.server = Server(urlsplit(self.url).port or 0)
        self.server.answer = self.answer


@pytest.fixture
def broker() -> Iterator[Restarting]:
    made = Restarting()
    yield made
    made.end()


def pauses(monkeypatch: pytest.MonkeyPatch, *steps: Callable[[], None] | None) -> None:
    """Take one step in each pause between two looks; behind the last one Ctrl-C is pressed."""
    left = list(steps)

    def rest(_seconds: float) -> None:
        if not left:
            raise Stopped
        step = left.pop(0)
        if step:
            step()

    monkeypatch.setattr(stop.time, "sleep", rest)


def test_a_watched_lag_outlives_a_restart_and_tells_it_once(
    broker: Restarting, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    broker.server.answer = broker.answer = lambda request: answered(LAG)
    pauses(monkeypatch, broker.end, None, broker.start)
    assert main(["--url", broker.url, "lag", "billing", "--watch", "--output", "json"]) == 0
    printed = capsys.readouterr()
    assert len(printed.out.splitlines()) == 2
    assert printed.err.count("waiting for it until Ctrl-C") == 1
    assert printed.err.count("it answers again") == 1


def test_a_tail_loses_nothing_to_a_broker_that_goes_between_two_queues(
    broker: Restarting, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    looks = {"topic": 0, "cut": 2}

    def answer(request: dict[str, Any]) -> Answer:
        if "/messages" in request["path"]:
            queue = 7 if "queue=7" in request["path"] else 8
            if queue == 8 and looks["cut"]:
                looks["cut"] -= 1
                return None
            return answered({"messages": [stored(queue)], "scanned": 1, "next": None})
        if "/topics/" not in request["path"]:
            return answered({"brokers": []})
        looks["topic"] += 1
        return answered(
            {
                "name": "orders",
                "queues": [{**q, "head": min(1, looks["topic"] - 1)} for q in QUEUES],
            }
        )

    broker.server.answer = broker.answer = answer
    pauses(monkeypatch, None, None, None)
    assert main(["--url", broker.url, "tail", "orders", "--output", "body"]) == 0
    printed = capsys.readouterr()
    assert looks["cut"] == 0
    assert printed.out.split("\n")[:-1] == ["of 7", "of 8"]
    assert printed.err.count("waiting for it until Ctrl-C") == 1


def test_a_tail_shows_only_messages_with_a_header(
    broker: Restarting, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    heads = iter((1, 2, 2, 2))

    def answer(request: dict[str, Any]) -> Answer:
        if "/messages" in request["path"]:
            offset = 0 if "offset=0" in request["path"] else 1
            web = {
                **stored(7),
                "offset": offset,
                "body": str(offset),
                "headers": {"source": "web", "n": "1"},
            }
            others = [
                {**web, "body": "bare", "headers": None},
                {**web, "body": "x", "headers": {"n": "web"}},
            ]
            return answered({"messages": [*others, web], "scanned": 3, "next": None})
        if "/topics/" not in request["path"]:
            return answered({"brokers": []})
        return answered({"name": "orders", "queues": [{**QUEUES[0], "head": next(heads)}]})

    broker.server.answer = broker.answer = answer
    pauses(monkeypatch, None, None)
    command = ["tail", "orders", "--header", "source=web", "--output", "body"]
    assert main(["--url", broker.url, *command]) == 0
    assert capsys.readouterr().out.split() == ["0", "1"]


@pytest.mark.parametrize("command", [["lag", "billing", "--watch"], ["tail", "orders"]])
def test_nobody_is_waited_for_at_the_start(
    command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--url", unused_url(), *command]) == 6
    assert "waiting" not in capsys.readouterr().err
