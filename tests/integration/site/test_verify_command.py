"""manage.py verify: what it prints, where it writes, how it ends."""

from __future__ import annotations

import json
from io import StringIO
from pathlib import Path

import pytest
from django.core.management import CommandError, call_command

from catmq_site.management import base
from catmq_site.management.commands import verify as command
from messagestore.engine.messages import NewMessage
from messagestore.produce.publish import publish
from messagestore.topology import topics
from messagestore.verify import visit
from metadata import actors
from metadata.errors import Invalid
from metadata.nodes import node_rows
from tests.support.tampering import plant, remove

pytestmark = pytest.mark.one_engine

ME = actors.command("test")


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for long."""
    monkeypatch.setattr(visit, "PAUSE_S", 0.01)


@pytest.fixture
def queue(node: str) -> int:
    """The queue of topic `orders`, with six messages."""
    (made,) = topics.create(name="orders", queues=1, actor=ME).queues
    messages = [NewMessage(body=b"m", queue=made.queue.queue) for _ in range(6)]
    publish(topic="orders", messages=messages, batch_id=None, actor=ME)
    return made.queue.queue


def verify(*arguments: str) -> tuple[int, str, str]:
    """(exit code, stdout, stderr with the error's text) of the command."""
    out, err = StringIO(), StringIO()
    try:
        call_command("verify", *arguments, stdout=out, stderr=err)
    except CommandError as error:
        return error.returncode, out.getvalue(), err.getvalue() + str(error)
    return 0, out.getvalue(), err.getvalue()


def test_a_clean_topic_ends_with_0_and_a_table(queue: int) -> None:
    code, out, err = verify("orders")
    assert (code, err) == (0, "")
    assert out.splitlines() == [
        "TOPIC   QUEUE  NODE  OFFSETS  ROWS  BATCHES  POSITIONS  RESULT",
        f"orders  {queue:<5}  main  0 … 5    6     1        0          ok",
        "",
        "1 queues, 6 rows, 1 batches: clean.",
    ]


def test_findings_end_with_1_and_say_what_to_do(queue: int, tmp_path: Path) -> None:
    remove(queue, 2, 3)
    plant(queue, "UPDATE queue_head SET state = 'ro'")
    file = tmp_path / "report.json"
    code, out, err = verify("--all", "--json", str(file))
    assert (code, err) == (1, "2 findings in 1 of 1 queues.")
    assert f"orders queue {queue} (node main): missing, offsets 2 … 3" in out
    assert "2 messages are missing, and no gap is declared there" in out
    assert "  Means: " in out and "  Do: " in out and out.endswith("not clean.\n")
    report = json.loads(file.read_text())
    assert (report["clean"], report["complete"], report["findings"]) == (False, True, 2)
    (one,) = report["queues"]
    assert [finding["kind"] for finding in one["findings"]] == ["missing", "state_differs"]
    assert (one["findings"][0]["first"], one["findings"][0]["end"]) == (2, 4)


def test_a_node_that_is_away_ends_with_3(queue: int) -> None:
    node_rows.update(name="main", settings={"state": "offline"}, actor=ME)
    code, out, err = verify("orders", "--json", "-")
    assert (code, err) == (3, "1 of 1 queues could not be checked.")
    assert json.loads(out)["queues"][0]["unseen"] == "Node main is offline."
    assert "not looked at: Node main is offline." in verify("orders")[1]


def test_ctrl_c_says_how_far_it_came(queue: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(self: object, what: str, done: int, total: int) -> None:
        if what == f"orders queue {queue}: offsets" and done == 4:
            raise KeyboardInterrupt

    monkeypatch.setattr("messagestore.verify.rows.CHUNK", 2)
    monkeypatch.setattr(visit.Visit, "report_progress", interrupt)
    code, out, err = verify("orders")
    assert (code, err) == (
        3,
        "Stopped: no problems so far, but not everything was checked.",
    )
    assert "0 … 5, seen up to 4  " in out and "stopped" in out
    remove(queue, 1)
    assert verify("orders")[::2] == (1, "Stopped. 1 findings in 1 of 1 queues.")


def test_long_work_says_where_it_is(queue: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "PROGRESS_EVERY_S", 0)
    _, _, err = verify("orders")
    assert f"orders queue {queue}: offsets 6 of 6\n" in err
    assert "batches on node main: 1\n" in err


@pytest.mark.parametrize(
    ("arguments", "said", "code"),
    [
        ((), "Name topics, or give --all.", 1),
        (("orders", "--all"), "Name topics, or give --all.", 1),
        (("nothing",), "Topic nothing does not exist.", 1),
        (("orders", "--since", "yesterday"), "must look like 2h", 1),
        (("orders", "--rows-per-second", "-1"), "must be 0 (no limit) or more", 1),
        (("orders", "--rows-per-s", "-1"), "must be 0 (no limit) or more", 1),
    ],
)
def test_a_refusal_is_one_line(
    queue: int, arguments: tuple[str, ...], said: str, code: int
) -> None:
    ended, out, err = verify(*arguments)
    assert (ended, out) == (code, "")
    assert said in err and "\n" not in err


def test_since_takes_what_people_write(monkeypatch: pytest.MonkeyPatch) -> None:
    assert command.parse_since("2h") == (None, 7_200_000)
    assert command.parse_since("1772366400000") == (1772366400000, None)
    assert command.parse_since("2026-03-01T12:00+00:00") == (1772366400000, None)
    local = command.parse_since("2026-03-01")
    assert local is not None and local.at_ms is not None
    assert abs(local.at_ms - 1772323200000) <= 14 * 3_600_000
    for wrong in ("2 hours", "-5m", "", "99999-01-01", "12"):
        with pytest.raises(Invalid):
            command.parse_since(wrong)


def test_only_what_was_stored_since_is_looked_at(queue: int) -> None:
    assert "none" in verify("orders", "--since", "9999-01-01")[1]
    assert "0 … 5" in verify("orders", "--since", "1h")[1]
