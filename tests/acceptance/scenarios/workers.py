"""A worker is killed with -9 while `Consumer.run` handles in eight threads: nothing lost,
keys in order.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

from tests.acceptance.scenarios.stage import Stage
from tests.support.changes import events
from tests.support.environment import ROOT
from tests.support.logs import Log, Place, await_count
from tests.support.waiting import until

WORKER = ROOT / "tests" / "acceptance" / "programs" / "worker.py"
QUEUES = 4
SESSION_MS = 2_000
MAX_HANDLER_MS = 25


def run(stage: Stage, *, source: Path, kills: int = 1) -> str:
    """Two workers at once; `kills` times one of them is killed and a new one started; the
    verdict.

    All write into one file, so its order is that in which things happened.
    """
    count = len(events(source))
    topic, group = stage.fresh("handled"), stage.fresh("workers")
    stage.terminal.run("topic", "create", topic, "--queues", str(QUEUES))
    stage.terminal.run("group", "create", group, "--session-timeout-ms", str(SESSION_MS))
    stage.terminal.run("send", topic, "--key-field", "path", "--file", str(source))
    log = Log(stage.directory / f"{group}.log")
    log.path.touch()
    names = iter(range(1000))

    def begin() -> Any:
        words = [
            str(WORKER),
            group,
            topic,
            str(log.path),
            str(stage.rng.random()),
            str(MAX_HANDLER_MS),
        ]
        return stage.terminal.start(*words, name=f"{group}-{next(names)}")

    workers = [begin(), begin()]
    for kill in range(kills):
        until(
            lambda: any(
                row["committed"] for row in stage.terminal.admin.lag(group)["queues"]
            ),
            limit_s=60,
        )
        moment = int(count * (kill + stage.rng.uniform(0.5, 0.9)) / (kills + 0.5))
        await_count(lambda: handled(log), moment)
        victim = workers.pop(stage.rng.randrange(2))
        victim.kill()
        stage.say(f"killed a worker after {handled(log)} of {count} events")
        workers.append(begin())
    await_count(lambda: handled(log), count)
    for worker in workers:
        worker.end()
    verdict = judge(log.follow(), count)
    stage.say(verdict)
    return verdict


def handled(log: Log) -> int:
    """How many different messages a handler has come back from."""
    return len({place_of(line) for line in log.follow() if line["at"] == "end"})


def place_of(line: dict[str, Any]) -> Place:
    """The message a line is about."""
    return Place(line["queue"], line["offset"])


def judge(lines: list[dict[str, Any]], count: int) -> str:
    """Checks that all events were handled, and each key in order except for repeats."""
    done: dict[Place, int] = {}
    latest: dict[str, int] = {}
    repeats = 0
    for line in lines:
        event = json.loads(line["body"])
        place = place_of(line)
        if line["at"] != "end":
            continue
        if place in done:
            repeats += 1
            continue
        done[place] = event["seq"]
        before = latest.get(event["path"], -1)
        assert event["seq"] > before, (
            f"{event['path']}: seq {event['seq']} handled after {before}"
        )
        latest[event["path"]] = event["seq"]
    assert sorted(done.values()) == list(range(count))
    judge_each_worker(lines)
    pids = Counter(line["pid"] for line in lines if line["at"] == "end")
    return (
        f"OK: {count} events handled, {repeats} repeated, by {len(pids)} workers: "
        f"{sorted(pids.values())}"
    )


def judge_each_worker(lines: list[dict[str, Any]]) -> None:
    """Within a worker a key has one handler at a time, and under one epoch its events come
    in order.
    """
    at_work: dict[tuple[int, str], int] = {}
    latest: dict[tuple[int, int, str], int] = {}
    for line in lines:
        event = json.loads(line["body"])
        lane = line["pid"], event["path"]
        if line["at"] == "begin":
            assert lane not in at_work, (
                f"{lane}: seq {event['seq']} begins during seq {at_work[lane]}"
            )
            at_work[lane] = event["seq"]
            before = latest.get((line["pid"], line["epoch"], event["path"]), -1)
            assert event["seq"] > before, (
                f"{lane}: seq {event['seq']} begins after seq {before}"
            )
            latest[line["pid"], line["epoch"], event["path"]] = event["seq"]
        else:
            assert at_work.pop(lane) == event["seq"]
