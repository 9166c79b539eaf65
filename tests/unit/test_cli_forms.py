"""Forms of output: pretty on a terminal, what a pipe gets, FORMAT, colours, progress and
--wait.
"""

from __future__ import annotations

import base64
import io
import json
import os
import signal
import threading
from typing import Any

import pytest

from catmq_client.cli import main, wait
from catmq_client.cli.output import Progress
from catmq_client.errors import ConnectFailed
from tests.support.canned import Canned

TOPICS = {
    "topics": [{"name": "orders", "state": "ready"}, {"name": "tea", "state": "deleted"}],
    "next": None,
}
QUEUE = {
    "queue": 7,
    "number": 0,
    "node": "main",
    "state": "read_write",
    "low": 0,
    "head": 1,
}
BOLD_NAME, GREEN_READY = "\x1b[1mNAME  \x1b[0m", "\x1b[32mready  \x1b[0m"


class Terminal(io.TextIOWrapper):
    """Standard output of somebody who looks at it."""

    def __init__(self) -> None:
        super().__init__(io.BytesIO(), encoding="utf-8", newline="", write_through=True)

    def isatty(self) -> bool:
        return True

    def shown(self) -> str:
        self.seek(0)
        return self.read()


def at_terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr("sys.stdout", made := Terminal())
    return made


def run(*argv: str, transport: Canned | None = None) -> int:
    return main(argv, transport=transport or Canned({"GET topics": TOPICS}))


def peeked(body: str = '{"item": "tea"}', **more: Any) -> Canned:
    message = {
        "offset": 0,
        "message_id": "7-0",
        "key": "k",
        "tag": None,
        "headers": {"trace": "t1"},
    }
    found = [
        {**message, "body": body, "stored_at_ms": 1_772_366_400_000, "attempt": 1, **more}
    ]
    return Canned(
        {
            "GET topics/orders": {"name": "orders", "queues": [QUEUE]},
            "GET topics/orders/messages": {"messages": found, "scanned": 1, "next": None},
        }
    )


def test_a_list_is_in_colour_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = at_terminal(monkeypatch)
    assert run("topic", "list") == 0
    assert BOLD_NAME in terminal.shown() and GREEN_READY in terminal.shown()


@pytest.mark.parametrize(("name", "value"), [("NO_COLOR", "1"), ("TERM", "dumb")])
def test_no_colour_where_none_is_wanted(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    terminal = at_terminal(monkeypatch)
    monkeypatch.setenv(name, value)
    assert run("topic", "list") == 0
    assert "\x1b" not in terminal.shown() and "orders" in terminal.shown()


def test_a_table_has_no_colour_even_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = at_terminal(monkeypatch)
    assert run("topic", "list", "--output", "table") == 0
    assert "\x1b" not in terminal.shown()


def test_pretty_in_a_pipe_has_no_colour_and_a_pipe_gets_what_it_always_got(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run("topic", "list", "--output", "pretty") == run("topic", "list") == 0
    pretty, table = capsys.readouterr().out.split("NAME")[1:]
    assert pretty == table and "\x1b" not in pretty
    assert run("peek", "orders", transport=peeked()) == 0
    assert json.loads(capsys.readouterr().out)["message_id"] == "7-0"


def test_messages_are_lines_below_a_heading_on_a_terminal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    terminal = at_terminal(monkeypatch)
    assert run("peek", "orders", transport=peeked()) == 0
    heading, line = terminal.shown().splitlines()
    assert "STORED" in heading and "BODY" in heading
    assert line.startswith("2026-03-01 12:00:00Z  7-0 ") and line.endswith(
        '{"item": "tea"}'
    )


def test_a_message_cannot_steer_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        run("peek", "orders", "--output", "table", transport=peeked("\x1b[2J\x9b2J\nx"))
        == 0
    )
    assert capsys.readouterr().out.splitlines()[1].endswith(r"\x1b[2J\x9b2J\nx")


@pytest.mark.parametrize(
    ("form", "line"),
    [
        ("{key} {body}", 'k {"item": "tea"}'),
        (r"{message_id}\t{headers.trace}\t{body.item}", "7-0\tt1\ttea"),
        ("{{{tag}}} {headers.none}{body.item.deeper}", "{} "),
        ("{headers}", '{"trace":"t1"}'),
    ],
)
def test_a_format_has_fields_of_the_json(
    form: str, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("peek", "orders", "--output", form, transport=peeked()) == 0
    assert capsys.readouterr().out == f"{line}\n"


@pytest.mark.parametrize(
    ("command", "answer"),
    [
        ("find orders --key k", {"scanned": 1, "next": None}),
        ("peek orders", {"scanned": 1, "next": None}),
        ("delayed orders", {"count": 1, "next": None, "away": []}),
        ("dlq show g 1", {}),
    ],
)
@pytest.mark.parametrize("form", ["{body.x}", "{body}", "json", "pretty"])
@pytest.mark.parametrize(
    "body", [b'{"x":"\\ud83d"}', b"[" * 100_000, b"\xff\x1b", b"\xff\xfe{"]
)
def test_no_message_stops_a_command(
    command: str, answer: dict[str, Any], form: str, body: bytes
) -> None:
    encoded = base64.b64encode(body).decode()
    message = {
        "offset": 0,
        "queue": 7,
        "message_id": "7-0",
        "key": "\ud83d",
        "headers": {"h": "\ud83d"},
    }
    message |= {
        "body_base64": encoded,
        "stored_at_ms": 1 << 60,
        "due_at_ms": 1 << 60,
        "attempt": 1,
    }
    canned = Canned(
        {
            "GET topics/orders": {"name": "orders", "queues": [QUEUE]},
            "GET topics/orders/messages": {"messages": [message], **answer},
            "GET topics/orders/delayed": {"messages": [message], **answer},
            "GET groups/g/dead/1": message,
        }
    )
    assert run(*command.split(), "--output", form, transport=canned) == 0


def test_a_format_of_a_list_names_unknown_fields(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run("topic", "list", "--output", "{name}:{state}") == 0
    assert capsys.readouterr().out == "orders:ready\ntea:deleted\n"
    assert run("topic", "list", "--output", "{stat}") == 2
    assert "{stat} is no field; there are name, state" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("form", "said"),
    [
        ("{kee}", "{kee} is no field; there are topic, queue, offset"),
        ("{key", "a brace without its other one"),
        ("{}", "{} is no field; give its name"),
        ("{key!r}", "{key!r} is no field"),
    ],
)
def test_a_wrong_format_is_told_before_anything_is_read(
    form: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        run("consume", "orders", "--group", "g", "--output", form, transport=Canned({}))
    assert said in capsys.readouterr().err


def test_progress_is_one_line_on_a_terminal_and_nothing_elsewhere(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    terminal = at_terminal(monkeypatch)
    monkeypatch.setattr("catmq_client.cli.output.PROGRESS_S", 0)
    told(Progress())
    assert capsys.readouterr().err == ""
    monkeypatch.setattr("sys.stderr", terminal)
    told(Progress())
    assert terminal.shown() == "\r\x1b[K1 sent\r\x1b[K2 sent\r\x1b[K"


def told(progress: Progress) -> None:
    progress.show("1 sent")
    progress.show("2 sent")
    progress.clear()
    progress.clear()


REDRIVE = {
    "id": 3,
    "state": "running",
    "redriven": 0,
    "total": 2,
    "skipped": 0,
    "detail": "",
    "to": "group",
}
MOVE = {"queue": 7, "topic": "orders", "from": "a", "to": "b"}
DRAINING = {
    **QUEUE,
    "draining": True,
    "slots": 0,
    "unread": [{"group": "g", "messages": 5}],
}
LAYOUT = {
    "topic": "orders",
    "dry_run": False,
    "queues": [QUEUE],
    "unread": [],
    "moved_share": 0.25,
}


def rebalanced(generation: int, pause_ms: int | None) -> dict[str, Any]:
    row = {
        "generation": generation,
        "cause": "x",
        "at_ms": 1,
        "moves": [{**MOVE, "pause_ms": pause_ms}],
    }
    return {"rebalances": [row], "next": None}


WAITS: dict[str, tuple[dict[str, Any], str, int]] = {
    "dlq redrive g --all --wait": (
        {
            "POST groups/g/dead/redrive": REDRIVE,
            "GET groups/g/redrives/3": [
                REDRIVE,
                ConnectFailed("away"),
                {**REDRIVE, "state": "done"},
                {**REDRIVE, "state": "done", "redriven": 2},
            ],
        },
        "groups/g/redrives/3",
        4,
    ),
    "group rebalance g --wait": (
        {
            "POST groups/g/rebalance": {
                "dry_run": False,
                "generation": 4,
                "moves": [{**MOVE, "at_once": False}],
            },
            "GET groups/g/rebalances": [rebalanced(4, None), rebalanced(4, 12)],
        },
        "groups/g/rebalances",
        2,
    ),
    "topic shrink orders --queue 7 --wait": (
        {
            "POST topics/orders/shrink": LAYOUT,
            "GET topics/orders/queues": [
                {"queues": [DRAINING]},
                {"queues": [{**DRAINING, "draining": False}]},
            ],
        },
        "topics/orders/queues",
        2,
    ),
    "brokers --wait": (
        {"GET brokers": [ConnectFailed("away"), {"brokers": []}, {"brokers": []}]},
        "brokers",
        3,
    ),
}


@pytest.mark.parametrize("words", WAITS)
def test_wait_looks_until_it_is_done(words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wait, "EVERY_S", 0)
    answers, path, looks = WAITS[words]
    canned = Canned(answers)
    assert main(words.split(), transport=canned) == 0
    assert [request.line for request in canned.requests].count(f"GET {path}") == looks


def test_wait_fails_with_a_redrive_that_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wait, "EVERY_S", 0)
    failed = {**REDRIVE, "state": "failed"}
    answers = {"POST groups/g/dead/redrive": REDRIVE, "GET groups/g/redrives/3": failed}
    assert main("dlq redrive g --all --wait".split(), transport=Canned(answers)) == 1  # noqa: SIM905


def test_a_signal_ends_only_the_wait(capsys: pytest.CaptureFixture[str]) -> None:
    answers = {"POST groups/g/dead/redrive": REDRIVE, "GET groups/g/redrives/3": REDRIVE}
    timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    assert main("dlq redrive g --all --wait".split(), transport=Canned(answers)) == 1  # noqa: SIM905
    assert (
        "stopped waiting; the redrive goes on; stop it: catmq dlq stop g 3"
        in capsys.readouterr().err
    )


MADE = {"name": "orders", "state": "ready", "retention_days": 2, "queues": [QUEUE]}


@pytest.mark.parametrize(
    ("command", "call", "said"),
    [
        ("topic create orders --output {name}", "POST topics", "orders\n"),
        (
            "topic set orders --retention-days 2 --output {state}",
            "PATCH topics/orders",
            "ready\n",
        ),
        (
            "topic set orders --retention-days 2 --output table",
            "PATCH topics/orders",
            "name            orders\nstate           ready\nretention days  2\n",
        ),
        ("group pause billing --output {name}", "PATCH groups/billing", "orders\n"),
        (
            "topic delete orders --yes --output json",
            "DELETE topics/orders",
            '{"name":"orders"}\n',
        ),
        ("topic delete orders --yes --output none", "DELETE topics/orders", ""),
    ],
)
def test_a_change_prints_its_object_if_that_is_wanted(
    command: str, call: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    answer = {} if call.startswith("DELETE") else MADE
    assert run(*command.split(), transport=Canned({call: answer})) == 0
    assert capsys.readouterr().out == said


def test_a_change_prints_nothing_but_a_note_by_default(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    terminal = at_terminal(monkeypatch)
    assert (
        run(
            "topic",
            "delete",
            "orders",
            "--yes",
            transport=Canned({"DELETE topics/orders": {}}),
        )
        == 0
    )
    assert terminal.shown() == ""
    assert (
        capsys.readouterr().err
        == "topic orders deleted: its tables are dropped after 3 days\n"
    )
