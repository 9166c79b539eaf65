"""catmq send: lines, keys, batches, receipts, and what is told when something is wrong."""

from __future__ import annotations

import argparse
import errno
import gzip
import io
import json
from pathlib import Path

import pytest

from catmq_client import Producer
from catmq_client.cli import main
from catmq_client.cli.messages.send import Receipts
from catmq_client.cli.output import count_noun
from catmq_client.errors import MessageRefused
from catmq_client.testing import FakeBroker


@pytest.fixture
def broker() -> FakeBroker:
    made = FakeBroker()
    made.create_topic("orders", queues=4)
    return made


@pytest.fixture
def events(tmp_path: Path) -> Path:
    path = tmp_path / "events.jsonl"
    path.write_text("".join(f'{{"n":{n},"path":"p{n % 7}"}}\n' for n in range(1000)))
    return path


class Input:
    """Standard input that is not a terminal."""

    def __init__(self, data: bytes) -> None:
        self.buffer = io.BytesIO(data)

    def isatty(self) -> bool:
        return False


def bodies(broker: FakeBroker) -> list[bytes]:
    return [message.body for message in broker.messages("orders")]


def test_one_message_with_key_tag_and_headers(
    broker: FakeBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = [
        "send",
        "orders",
        "hello",
        "--key",
        "k",
        "--tag",
        "new",
        "--header",
        "a=1",
        "--header",
        "b=2",
    ]
    assert main([*argv, "--output", "json"], transport=broker) == 0
    (message,) = broker.messages("orders")
    assert (message.body, message.key, message.tag, message.headers) == (
        b"hello",
        "k",
        "new",
        {"a": "1", "b": "2"},
    )
    receipt = json.loads(capsys.readouterr().out)
    assert list(receipt) == ["line", "topic", "queue", "offset", "message_id"]


def test_a_queue_is_chosen_and_any_queue_lets_another_one_do(
    broker: FakeBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    (wished, *others) = broker.topics.by_name["orders"].queues
    argv = ["send", "orders", "hello", "--queue", str(wished.id), "--output", "{queue}"]
    assert main(argv, transport=broker) == 0
    wished.state = "read_only"
    assert main([*argv, "--any-queue"], transport=broker) == 0
    first, second = map(int, capsys.readouterr().out.split())
    assert first == wished.id and second in [one.id for one in others]
    with pytest.raises(SystemExit):
        main(["send", "orders", "hello", "--any-queue"], transport=broker)
    assert "--any-queue needs --queue" in capsys.readouterr().err


@pytest.mark.parametrize("batch", [1, 10, 500])
def test_each_key_keeps_the_order_of_its_lines(
    broker: FakeBroker, events: Path, batch: int
) -> None:
    argv = [
        "send",
        "orders",
        "--key-field",
        "path",
        "--file",
        str(events),
        "--batch",
        str(batch),
    ]
    assert main(argv, transport=broker) == 0
    stored = [
        (message.key, json.loads(message.body)["n"])
        for message in broker.messages("orders")
    ]
    assert sorted(n for _, n in stored) == list(range(1000))
    for key in {key for key, _ in stored}:
        numbers = [n for k, n in stored if k == key]
        assert numbers == sorted(numbers)


def test_no_request_holds_more_messages_than_the_batch(
    broker: FakeBroker, events: Path
) -> None:
    main(
        ["send", "orders", "--key-field", "path", "--file", str(events), "--batch", "3"],
        transport=broker,
    )
    sizes = [len(seen.body["messages"]) for seen in broker.seen("POST .*/messages")]
    assert sum(sizes) == 1000
    assert max(sizes) <= 3


def test_a_body_is_the_line_itself_without_its_end(
    broker: FakeBroker, tmp_path: Path
) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(b'{ "a" : "\xc3\xa4" }\r\n\n  \n{"b":1}')
    assert (
        main(["send", "orders", "--file", str(path), "--key", "k"], transport=broker) == 0
    )
    assert bodies(broker) == [b'{ "a" : "\xc3\xa4" }', b'{"b":1}']


@pytest.mark.parametrize("name", ["x.jsonl", "x.txt", "X.JSONL"])
def test_the_byte_order_mark_of_a_file_from_windows_is_no_part_of_a_message(
    broker: FakeBroker, tmp_path: Path, name: str
) -> None:
    path = tmp_path / name
    path.write_bytes('\ufeff{"path":"a"}\r\n{"path":"b"}\r\n'.encode())
    assert (
        main(["send", "orders", "--file", str(path), "--key", "k"], transport=broker) == 0
    )
    assert bodies(broker) == [b'{"path":"a"}', b'{"path":"b"}']


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be"])
@pytest.mark.parametrize("name", ["x.jsonl", "x.txt"])
def test_a_file_in_utf_16_is_refused_with_its_cause(
    broker: FakeBroker,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    *,
    name: str,
    encoding: str,
) -> None:
    path = tmp_path / name
    path.write_bytes('\ufeff{"path":"a"}\r\n'.encode(encoding))
    assert main(["send", "orders", "--file", str(path)], transport=broker) == 1
    assert (
        "line 1: the input is UTF-16 or UTF-32: write it in UTF-8"
        in capsys.readouterr().err
    )
    assert bodies(broker) == []


def test_lines_of_a_file_whose_name_is_in_capitals_are_checked(
    broker: FakeBroker, tmp_path: Path
) -> None:
    path = tmp_path / "X.JSONL"
    path.write_bytes(b"oops")
    assert main(["send", "orders", "--file", str(path)], transport=broker) == 1


def test_a_gzip_file_is_unpacked(broker: FakeBroker, events: Path) -> None:
    packed = events.with_suffix(".jsonl.gz")
    packed.write_bytes(gzip.compress(events.read_bytes()))
    assert main(["send", "orders", "--file", str(packed)], transport=broker) == 0
    assert len(bodies(broker)) == 1000


@pytest.mark.parametrize("argv", [["-"], ["--file", "-"], []])
def test_standard_input_is_read(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch, argv: list[str]
) -> None:
    monkeypatch.setattr("sys.stdin", Input(b'{"a":1}\n{"a":2}\n'))
    assert main(["send", "orders", "--key", "k", *argv], transport=broker) == 0
    assert bodies(broker) == [b'{"a":1}', b'{"a":2}']


def test_lines_of_standard_input_need_not_be_json(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", Input(b"plain\n\xff\xfe\n"))
    assert main(["send", "orders", "-", "--key", "k"], transport=broker) == 0
    assert bodies(broker) == [b"plain", b"\xff\xfe"]


def test_receipts_come_in_the_order_of_the_lines(
    broker: FakeBroker, events: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = [
        "send",
        "orders",
        "--file",
        str(events),
        "--key-field",
        "path",
        "--output",
        "json",
    ]
    assert main(argv, transport=broker) == 0
    receipts = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [receipt["line"] for receipt in receipts] == list(range(1, 1001))
    stored = {
        (message.queue, message.offset): message.body
        for message in broker.messages("orders")
    }
    sent = events.read_bytes().splitlines()
    assert all(stored[r["queue"], r["offset"]] == sent[r["line"] - 1] for r in receipts)


@pytest.mark.parametrize(
    ("line", "told"),
    [
        (b"{oops", "not JSON"),
        (b"\xff{}", "not UTF-8"),
        (b"[1]", "not a JSON object"),
        (b'{"other":1}', "no field 'path'"),
        (b'{"path":null}', "field 'path' is null"),
        (b'{"path":true}', "field 'path' is true"),
        (b'{"path":1.5}', "field 'path' is 1.5"),
        (b"[" * 100_000, "not JSON"),
        (
            b'\xef\xbb\xbf{"path":"a"}',
            "not JSON from character 1 on: remove its byte order mark",
        ),
        (
            '{"path":"a"}'.encode("utf-16-le"),
            "not JSON from character 2 on: it has zero bytes, as UTF-16",
        ),
    ],
)
def test_a_bad_line_is_named_and_all_before_it_are_sent(
    broker: FakeBroker,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    *,
    line: bytes,
    told: str,
) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_bytes(b'{"path":"a"}\n{"path":7}\n\n' + line + b'\n{"path":"never"}\n')
    assert (
        main(
            ["send", "orders", "--file", str(path), "--key-field", "path"], transport=broker
        )
        == 1
    )
    assert sorted(bodies(broker)) == [b'{"path":"a"}', b'{"path":7}']
    error = capsys.readouterr().err
    assert f"line 4: {told}" in error
    assert "sent 2 messages" in error
    assert "tail -n +4" in error


def test_a_damaged_gzip_file_is_told_with_how_much_was_sent(
    broker: FakeBroker, events: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    packed = events.with_suffix(".jsonl.gz")
    packed.write_bytes(gzip.compress(events.read_bytes())[:-200])
    assert main(["send", "orders", "--file", str(packed)], transport=broker) == 1
    error = capsys.readouterr().err
    assert "the gzip file is damaged here" in error
    assert f"sent {len(bodies(broker))} messages" in error


def test_a_file_that_is_not_there_is_named(
    broker: FakeBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["send", "orders", "--file", "nowhere.jsonl"], transport=broker) == 1
    assert "nowhere.jsonl" in capsys.readouterr().err


def test_an_unknown_topic_is_named(
    broker: FakeBroker, events: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["send", "nothing", "--file", str(events)], transport=broker) == 1
    assert "nothing" in capsys.readouterr().err


def test_a_refused_line_is_named_and_the_counts_say_what_was_sent(
    broker: FakeBroker, events: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broker.fail(
        "POST .*/messages", MessageRefused("too large for this topic", code="too_large")
    )
    assert (
        main(
            [
                "send",
                "orders",
                "--file",
                str(events),
                "--key-field",
                "path",
                "--batch",
                "1",
            ],
            transport=broker,
        )
        == 1
    )
    error = capsys.readouterr().err
    assert "too large for this topic" in error
    assert "1 line not confirmed" in error
    assert f"sent {count_noun(len(bodies(broker)), 'message')} to orders" in error


def test_an_empty_input_sends_nothing_and_is_fine(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", Input(b""))
    assert main(["send", "orders", "-"], transport=broker) == 0
    assert bodies(broker) == []


def test_a_file_named_jsonl_is_checked_also_without_a_key_field(
    broker: FakeBroker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text('{"a":1}\noops\n')
    assert main(["send", "orders", "--file", str(path)], transport=broker) == 1
    assert "line 2: not JSON" in capsys.readouterr().err
    assert bodies(broker) == [b'{"a":1}']


class Full:
    """Standard output on a full disk, after some lines."""

    def __init__(self, lines: int) -> None:
        self.buffer = self
        self.left = lines

    def write(self, line: bytes) -> int:
        if self.left == 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        self.left -= 1
        return len(line)

    def flush(self) -> None:
        """Nothing is kept."""


def test_receipts_that_cannot_be_written_end_the_command_with_a_fault(
    broker: FakeBroker,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = tmp_path / "many.jsonl"
    # More than may wait for a receipt: nothing may block behind the one that cannot be
    # written.
    path.write_text("".join(f'{{"n":{n}}}\n' for n in range(25_000)))
    monkeypatch.setattr("catmq_client.cli.output.sys.stdout", Full(10))
    assert (
        main(["send", "orders", "--file", str(path), "--output", "json"], transport=broker)
        == 1
    )
    monkeypatch.undo()
    error = capsys.readouterr().err
    assert "receipts could not be written" in error
    assert f"sent {len(bodies(broker))} messages" in error


def test_a_dead_receipt_thread_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch, broker: FakeBroker
) -> None:
    monkeypatch.setattr("catmq_client.cli.messages.send.PENDING", 1)
    receipts = Receipts(argparse.Namespace(output="none"))
    receipts.finish()
    future = Producer(transport=broker).send_async("orders", b"x")
    for line in range(3):
        receipts.expect(line, future)
    receipts.finish()


def test_receipts_as_a_table_come_line_by_line_under_one_heading(
    broker: FakeBroker, tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    path = tmp_path / "lines"
    path.write_text("a\nb\n")
    assert (
        main(
            ["send", "orders", "--file", str(path), "--key", "k", "--output", "table"],
            transport=broker,
        )
        == 0
    )
    heading, *rows = capsysbinary.readouterr().out.decode().splitlines()
    assert heading.split() == ["LINE", "QUEUE", "OFFSET", "MESSAGE", "ID", "DUE"]
    assert [row.split()[0] for row in rows] == ["1", "2"]
    assert [row.split()[2] for row in rows] == ["0", "1"]
    assert all(len(row) <= len(heading) for row in rows)
