"""The commands as processes: signals, pipes, memory, and the examples as they stand."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from catmq_client import Producer
from tests.support.served import served
from tests.support.simulated import SimulatedBroker

ROOT = Path(__file__).parents[2]
LIMIT_S = 60.0

Start = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture
def broker() -> SimulatedBroker:
    made = SimulatedBroker()
    made.create_topic("orders", queues=2)
    return made


@pytest.fixture
def start(broker: SimulatedBroker) -> Iterator[Start]:
    """Starts Python with arguments, the broker in its environment; kills at the end what
    still runs.
    """
    running: list[subprocess.Popen[bytes]] = []
    with served(broker) as url:
        environment = {
            **os.environ,
            "CATMQ_URL": url,
            "PYTHONPATH": str(ROOT / "client" / "src"),
        }

        def begin(*argv: str, **options: Any) -> subprocess.Popen[bytes]:
            pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
            command = [sys.executable, *argv]
            running.append(subprocess.Popen(command, env=environment, cwd=ROOT, **pipes))
            return running[-1]

        yield begin
        for process in running:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout, process.stderr):
                if pipe is not None:
                    pipe.close()


CONSUME = ("-m", "catmq_client", "consume", "orders", "--group", "g")
SEND = ("-m", "catmq_client", "send", "orders")


def fill(broker: SimulatedBroker, count: int) -> None:
    with Producer(transport=broker) as producer:
        for number in range(count):
            producer.send_async(
                "orders", json={"order": number, "item": "tea"}, key=f"k{number % 5}"
            )


def done(broker: SimulatedBroker) -> int:
    return sum(broker.committed("g").values())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_commits_what_was_printed_leaves_and_is_exit_code_0(
    broker: SimulatedBroker, start: Start, number: signal.Signals
) -> None:
    fill(broker, 10)
    process = start(*CONSUME)
    assert process.stdout is not None
    printed = [process.stdout.readline() for _ in range(10)]
    process.send_signal(number)
    out, err = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0, err
    assert len({json.loads(line)["body"] for line in printed}) == 10
    assert out == b""
    assert done(broker) == 10
    assert broker.seen("DELETE .*/consumers/")
    assert b"Traceback" not in err


def test_a_signal_in_the_middle_of_a_stream_commits_exactly_what_was_printed(
    broker: SimulatedBroker, start: Start, tmp_path: Path
) -> None:
    fill(broker, 5000)
    with (tmp_path / "out").open("wb") as out:
        process = start(*CONSUME, stdout=out)
        assert broker.wait_until(
            lambda: bool(broker.seen("POST .*/pull")), timeout_s=LIMIT_S
        )
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0, err
    assert done(broker) == len((tmp_path / "out").read_bytes().splitlines())


def test_a_pipe_whose_reader_goes_away_is_exit_code_0(
    broker: SimulatedBroker, start: Start
) -> None:
    fill(broker, 5000)
    process = start(*CONSUME)
    assert process.stdout is not None
    process.stdout.readline()
    process.stdout.close()
    assert process.wait(timeout=LIMIT_S) == 0
    assert process.stderr is not None
    assert b"Traceback" not in process.stderr.read()
    assert 1 <= done(broker) < 5000
    assert broker.seen("DELETE .*/consumers/")


def test_a_signal_ends_also_a_consumer_whose_reader_stands_still(
    broker: SimulatedBroker, start: Start
) -> None:
    fill(broker, 5000)
    process = start(*CONSUME)
    assert process.stdout is not None
    process.stdout.read(1)
    assert broker.wait_until(lambda: done(broker) > 0, timeout_s=LIMIT_S)
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=LIMIT_S) == 0
    assert done(broker) < 5000


def test_two_consumers_share_a_topic_and_each_message_comes_once(
    broker: SimulatedBroker, start: Start, tmp_path: Path
) -> None:
    # Into files: one that waits for somebody to read its pipe keeps its queues meanwhile.
    paths = [tmp_path / "first", tmp_path / "second"]
    processes = []
    for path in paths:
        with path.open("wb") as out:
            processes.append(start(*CONSUME, "--idle-timeout", "2", stdout=out))
    assert broker.wait_until(
        lambda: len(broker.seen("POST .*/consumers$")) >= 2, timeout_s=LIMIT_S
    )
    fill(broker, 500)
    for process in processes:
        _, err = process.communicate(timeout=LIMIT_S)
        assert process.returncode in (0, 3), err
    bodies = [
        json.loads(line)["body"]
        for path in paths
        for line in path.read_bytes().splitlines()
    ]
    assert len(bodies) == len(set(bodies)) == 500


def test_receipts_come_while_the_input_stays_open(
    broker: SimulatedBroker, start: Start
) -> None:
    process = start(*SEND, "-", "--output", "json", stdin=subprocess.PIPE)
    assert process.stdin is not None and process.stdout is not None
    for number in (1, 2):
        process.stdin.write(b'{"a":1}\n')
        process.stdin.flush()
        assert json.loads(process.stdout.readline())["line"] == number
    process.stdin.close()
    assert process.wait(timeout=LIMIT_S) == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_send_waits_for_input_sends_what_was_read(
    broker: SimulatedBroker, start: Start, number: signal.Signals
) -> None:
    process = start(*SEND, "-", "--output", "json", stdin=subprocess.PIPE)
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write(b'{"a":1}\n')
    process.stdin.flush()
    process.stdout.readline()
    process.send_signal(number)
    assert process.wait(timeout=LIMIT_S) == 1
    assert process.stderr is not None
    told = process.stderr.read()
    assert b"sent 1 message to" in told
    assert b"the rest of the input was not sent" in told
    assert b"Traceback" not in told


def test_a_long_stream_is_sent_in_bounded_memory(
    broker: SimulatedBroker, start: Start, tmp_path: Path
) -> None:
    """64 MiB of lines through a process that may not use much more than Python and its
    buffers.
    """
    # Its own peak: ru_maxrss begins with what the process that started it had in memory.
    limited = (
        "import re, sys\n"
        "from catmq_client.cli import main\n"
        "code = main(sys.argv[1:])\n"
        "most = re.search('VmHWM:\\\\s+([0-9]+) kB', open('/proc/self/status').read())\n"
        "print(int(most[1]) // 1024)\n"
        "sys.exit(code)\n"
    )
    path = tmp_path / "long.jsonl"
    line = json.dumps("x" * 65_000).encode() + b"\n"
    with path.open("wb") as out:
        out.writelines(line for _ in range(1000))
    process = start("-c", limited, "send", "orders", "--file", str(path))
    printed, err = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0, err
    assert int(printed) < 150, f"{int(printed)} MiB"
    assert len(broker.messages("orders")) == 1000


def test_the_send_example_sends_ten_orders(broker: SimulatedBroker, start: Start) -> None:
    process = start("examples/send.py")
    out, err = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0, err
    assert len(out.splitlines()) == len(broker.messages("orders")) == 10


def test_the_worker_example_handles_all_until_it_is_told_to_stop(
    broker: SimulatedBroker, start: Start
) -> None:
    fill(broker, 40)
    process = start("examples/worker.py")
    assert process.stdout is not None
    handled = [process.stdout.readline() for _ in range(40)]
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0, err
    assert len(set(handled)) == 40
    assert sum(broker.committed("workers").values()) == 40


def test_the_consume_example_prints_orders(broker: SimulatedBroker, start: Start) -> None:
    fill(broker, 10)
    process = start("examples/consume.py")
    assert process.stdout is not None
    assert len([process.stdout.readline() for _ in range(10)]) == 10


def test_bash_completes_commands_and_options_by_the_printed_script(
    start: Start, tmp_path: Path
) -> None:
    script = tmp_path / "completion"
    script.write_bytes(
        start(
            "-m", "catmq_client", "--completion", "bash", stdout=subprocess.PIPE
        ).communicate()[0]
    )
    for begun, completed in (("ex", "expand"), ("sh", "show shrink")):
        ask = (
            f"source {script}; COMP_WORDS=(catmq topic {begun}); COMP_CWORD=2; _shtab_catmq"
        )
        command = ["bash", "-c", f'{ask}; echo "${{COMPREPLY[@]}}"']
        told = subprocess.run(command, capture_output=True, text=True, check=True)
        assert sorted(told.stdout.split()) == completed.split()
