"""catmq brokers and catmq broker: what they ask, print and end with."""

from __future__ import annotations

import json
from typing import Any

import pytest

from catmq_client import HttpTransport
from catmq_client.cli import main
from catmq_client.cli.connection import Brokers
from catmq_client.errors import Conflict, NotFound
from catmq_client.http.transport import api_path
from metadata.config import config
from tests.support.canned import Canned

BROKER: dict[str, Any] = {
    "name": "b1",
    "url": "http://b1:8000",
    "state": "in",
    "alive": True,
    "version": "0.3",
    "started_at_ms": 1_772_366_000_000,
    "last_seen_at_ms": 1_772_366_400_000,
    "stopped_at_ms": None,
}
ROWS = {
    "brokers": [
        BROKER,
        {**BROKER, "name": "b2", "state": "out", "alive": False, "version": ""},
    ]
}


def test_brokers_are_a_table_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    canned = Canned({"GET brokers": ROWS})
    assert main(["brokers"], transport=canned) == 0
    heading, first, second = capsys.readouterr().out.splitlines()
    assert heading.split() == ["NAME", "URL", "STATE", "ALIVE", "LAST", "HEARD", "VERSION"]
    assert first.split() == [
        "b1",
        "http://b1:8000",
        "in",
        "yes",
        "2026-03-01",
        "12:00:00Z",
        "0.3",
    ]
    assert second.split() == [
        "b2",
        "http://b1:8000",
        "out",
        "no",
        "2026-03-01",
        "12:00:00Z",
        "-",
    ]
    assert canned.requests[0].params is None


def test_brokers_as_json_are_one_object_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        main(["brokers", "--output", "json"], transport=Canned({"GET brokers": ROWS})) == 0
    )
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == ROWS[
        "brokers"
    ]


@pytest.mark.parametrize("name", ["b1", "box-1:8000", config.broker_name])
@pytest.mark.parametrize(("verb", "state"), [("drain", "out"), ("enable", "in")])
def test_a_broker_is_drained_and_enabled_by_any_name_that_it_has_by_default(
    verb: str, state: str, name: str
) -> None:
    canned = Canned(
        {
            f"PATCH {api_path('brokers', name).removeprefix('/api/v1/')}": {
                **BROKER,
                "state": state,
            }
        }
    )
    assert main(["broker", verb, name], transport=canned) == 0
    assert canned.requests[0].body == {"state": state}


def test_the_last_broker_that_serves_is_kept_with_the_brokers_words(
    capsys: pytest.CaptureFixture[str],
) -> None:
    refusal = Conflict("b1 is the last broker in service", code="last_broker", status=409)
    assert (
        main(["broker", "drain", "b1"], transport=Canned({"PATCH brokers/b1": refusal}))
        == 1
    )
    assert "b1 is the last broker in service" in capsys.readouterr().err


def test_forgetting_a_broker_confirms_with_the_name() -> None:
    canned = Canned({"DELETE brokers/b2": {}})
    assert main(["broker", "forget", "b2", "--yes"], transport=canned) == 0
    assert canned.requests[0].params == {"confirm": "b2"}


def test_at_a_terminal_a_name_that_differs_forgets_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Terminal:
        def isatty(self) -> bool:
            return True

        def readline(self) -> str:
            return "b1\n"

    monkeypatch.setattr("sys.stdin", Terminal())
    canned = Canned({"DELETE brokers/b2": {}})
    assert main(["broker", "forget", "b2"], transport=canned) == 1
    assert canned.requests == []


def test_a_broker_that_is_not_known_is_a_failure(
    capsys: pytest.CaptureFixture[str],
) -> None:
    missing = NotFound("there is no broker b9", code="broker_not_found", status=404)
    canned = Canned({"DELETE brokers/b9": missing, "PATCH brokers/b9": missing})
    for call in (["forget", "b9", "--yes"], ["enable", "b9"]):
        assert main(["broker", *call], transport=canned) == 4
        assert "there is no broker b9" in capsys.readouterr().err


def test_a_command_that_asks_once_does_not_look_for_other_brokers() -> None:
    transport = Brokers(["http://127.0.0.1:9"], api_key=None).admin()._transport
    assert isinstance(transport, HttpTransport)
    assert transport._discovery is None


def test_a_command_that_goes_on_looks_for_other_brokers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[HttpTransport] = []

    class Consumer:
        def __init__(self, *, transport: Any, **options: Any) -> None:
            made.append(transport._transport)
            raise NotFound("enough seen")

    monkeypatch.setattr("catmq_client.cli.messages.consume.Consumer", Consumer)
    assert main(["--url", "http://127.0.0.1:9", "consume", "t", "--group", "g"]) == 4
    assert made[0]._discovery is not None
