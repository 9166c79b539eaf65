"""Handlers that fail at 30 % of their calls: every event is handled once or more, or dead;
none is missing.

Judged from what the handlers wrote down themselves. In ordered subscriptions the events of
a path are handled in their order: in run(order="key") those of the same path, in
run(order="queue") all of the queue.
"""

from __future__ import annotations

import json
import signal
from collections import defaultdict
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

from tests.acceptance.programs.shaky import fails
from tests.acceptance.scenarios.main_job import send
from tests.acceptance.scenarios.stage import Stage
from tests.support.changes import events
from tests.support.environment import ROOT
from tests.support.waiting import until

QUEUES = 4
RETRIES = 2
PROGRAM = ROOT / "tests" / "acceptance" / "programs" / "shaky.py"
LIMIT_S = 300.0


def run(
    stage: Stage, *, source: Path, ordered: bool, order: str = "key", members: int = 2
) -> str:
    """Plays it with members that share the topic; the verdict."""
    topic, group = stage.fresh("changes"), stage.fresh("failing")
    stage.terminal.run("topic", "create", topic, "--queues", str(QUEUES))
    stage.terminal.run("group", "create", group)
    stage.terminal.run("subscribe", group, topic)
    settings = (
        ["--ordered", "--retry-delays", "0s"] if ordered else ["--retry-delays", "1s"]
    )
    stage.terminal.run(
        "subscription", "set", group, topic, "--retries", str(RETRIES), *settings
    )
    send(stage, topic, source, 500)
    numbers = {event["seq"] for event in events(source)}
    journals = [stage.directory / f"{group}-{n}.jsonl" for n in range(members)]
    started = [
        stage.terminal.start(
            str(PROGRAM), group, topic, str(journal), "--order", order, name=journal.stem
        )
        for journal in journals
    ]
    until(lambda: is_over(calls(journals), numbers), limit_s=LIMIT_S, every_s=0.2)
    for process in started:
        process.end(signal.SIGTERM)
    verdict = judge(stage, group, calls(journals), numbers, ordered=ordered, order=order)
    stage.say(verdict)
    return verdict


def calls(journals: list[Path]) -> list[dict[str, Any]]:
    """What the handlers wrote, by time; a last line that is not whole yet is left out."""
    lines = [
        line
        for journal in journals
        if journal.exists()
        for line in journal.read_text().splitlines(True)
    ]
    told = [json.loads(line) for line in lines if line.endswith("\n")]
    return sorted((one for one in told if one["what"] == "end"), key=lambda one: one["at"])


def is_over(told: list[dict[str, Any]], numbers: set[int]) -> bool:
    """Whether every event was handled, or has failed as often as it may."""
    return {
        one["number"] for one in told if one["handled"] or one["attempt"] >= RETRIES
    } == numbers


def judge(
    stage: Stage,
    group: str,
    told: list[dict[str, Any]],
    numbers: set[int],
    *,
    ordered: bool,
    order: str,
) -> str:
    """What the handlers' own words show; and that the broker counts the same dead."""
    handled = {one["number"] for one in told if one["handled"]}
    must_die = {
        n for n in numbers if all(fails(n, attempt) for attempt in range(RETRIES + 1))
    }
    assert handled == numbers - must_die, (
        f"missing: {sorted(numbers - must_die - handled)[:5]}"
    )
    at = {(one["queue"], one["offset"]): one["number"] for one in told}
    dead = {at[place] for place in dead_places(stage, group)}
    assert dead == must_die, f"dead: {len(dead)}, of {len(must_die)}"
    if ordered:
        check_order(told, "key" if order == "key" else "queue")
    failed = sum(not one["handled"] for one in told)
    return (
        f"OK: {len(numbers)} events, {len(told)} calls of which {failed} failed;"
        f" {len(handled)} handled, {len(dead)} dead, none missing"
        + (f"; the order of each {order} held" if ordered else "")
    )


def dead_places(stage: Stage, group: str) -> set[tuple[int, int]]:
    """Queue and offset of the messages that the broker keeps as dead."""
    found: set[tuple[int, int]] = set()
    after = ""
    while True:
        status, page = stage.server.call(
            "GET", f"/api/v1/groups/{group}/dead?limit=500&after={after}"
        )
        assert status == 200, page
        found |= {(one["queue"], one["offset"]) for one in page["messages"]}
        if page["next"] is None:
            return found
        after = page["next"]


def check_order(told: list[dict[str, Any]], by: str) -> None:
    """Within each lane, first handlings rise by event, and an event ends before the next
    one begins.
    """
    lanes: Mapping[Any, list[dict[str, Any]]] = defaultdict(list)
    for one in told:
        lanes[one[by]].append(one)
    for lane, ones in lanes.items():
        wrong = [(a, b) for a, b in pairwise(ones) if not follows(a, b)]
        assert not wrong, f"{by} {lane}: {wrong[:2]}"


def follows(one: Mapping[str, Any], after: Mapping[str, Any]) -> bool:
    """Whether a call may come right after another: the next try of the same event, or a
    later event once that one was handled or dead. A queue that changed hands begins again
    where its commit was."""
    if after["epoch"] != one["epoch"]:
        return True
    if after["number"] == one["number"]:
        return bool(after["attempt"] == one["attempt"] + 1)
    return bool(
        after["number"] > one["number"] and (one["handled"] or one["attempt"] >= RETRIES)
    )
