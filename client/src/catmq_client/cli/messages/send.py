"""catmq send: a message from the command line, or a message for each line of the input."""

from __future__ import annotations

import argparse
import queue
import sys
import threading
import time
from contextlib import suppress
from typing import Any, NamedTuple

from catmq_client import Producer
from catmq_client.cli.arguments import parse_header, time_span, whole_number
from catmq_client.cli.connection import Brokers
from catmq_client.cli.messages.lines import (
    BadLine,
    Source,
    open_input,
    read_lines,
    requires_json,
)
from catmq_client.cli.output import (
    Columns,
    Progress,
    RowPrinter,
    count_noun,
    field_columns,
    format_time,
    note,
    time_column,
)
from catmq_client.cli.stop import GRACE_S, Stop, Stopped
from catmq_client.cli.verbs import TOPIC, Argument, Output, Verb
from catmq_client.errors import CatmqError
from catmq_client.sending.receipts import Receipt, SendFuture

# The API's limit of messages per request.
MAX_BATCH = 1000
# Lines whose receipts are awaited at the same time.
PENDING = 10_000
BUFFER_BYTES = 32 * 1024 * 1024
RECEIPT_FIELDS = ("line", "topic", "queue", "offset", "message_id", "due_at_ms")
RECEIPT: Columns = {
    **field_columns("line queue offset message_id"),
    "DUE": time_column("due_at_ms"),
}
RECEIPT_WIDTHS = (7, 6, 10, 14, 0)
# Failed lines that are printed; the others are counted only.
MAX_SHOWN_FAILURES = 10


def send(args: argparse.Namespace, brokers: Brokers) -> int:
    """Send the message or the lines. The exit code is 0 if all are stored."""
    if args.message not in (None, "-") and args.file:
        args.parser.error("give a MESSAGE or --file, not both")
    if args.key_field and (args.key is not None or args.message not in (None, "-")):
        args.parser.error(
            "--key-field takes the key from JSON lines: not with --key or a MESSAGE"
        )
    if args.any_queue and args.queue is None:
        args.parser.error("--any-queue needs --queue, the queue that is preferred")
    if args.message not in (None, "-"):
        return send_one(args, brokers)
    return send_lines(args, brokers)


def send_one(args: argparse.Namespace, brokers: Brokers) -> int:
    with brokers.producer() as producer:
        receipt = producer.send(args.topic, args.message, **message_fields(args))
    if args.output != "none":
        RowPrinter(args.output, RECEIPT, RECEIPT_WIDTHS).write(receipt_row(1, receipt))
    location = f"queue {receipt.queue}, offset {receipt.offset}"
    if receipt.due_at_ms is not None:
        location = f"{receipt.message_id}, due {format_time(receipt.due_at_ms)}"
    note(f"sent 1 message to {args.topic}: {location}")
    return 0


def message_fields(args: argparse.Namespace) -> dict[str, Any]:
    """Return the fields of each message apart from its body."""
    return {
        "key": args.key,
        "tag": args.tag,
        "headers": dict(args.header),
        "queue": args.queue,
        "queue_strict": not args.any_queue,
        "delay_ms": args.delay,
    }


def receipt_row(line: int, receipt: Receipt) -> dict[str, Any]:
    """Return a receipt as JSON, with the number of its input line.

    A stored message has queue and offset, a delayed message the time when it is due.
    """
    fields = receipt._asdict()
    left_out = ("due_at_ms",) if receipt.due_at_ms is None else ("queue", "offset")
    return {
        "line": line,
        **{name: value for name, value in fields.items() if name not in left_out},
    }


def send_lines(args: argparse.Namespace, brokers: Brokers) -> int:
    """Send the lines of the input. Lines before a bad line are sent and counted."""
    name = args.file or "-"
    if name == "-" and sys.stdin.isatty():
        note("One message a line; Ctrl-D ends.")
    # A full buffer blocks longer than the oldest message in it may take, so that the error
    # shown is that of the message and not BufferFull.
    options = {
        "batch_messages": args.batch,
        "buffer_bytes": BUFFER_BYTES,
        "max_block_ms": 150_000,
    }
    with Stop() as stop, open_input(name) as source:
        producer = brokers.producer(**options)
        receipts = Receipts(args)
        try:
            input_error = LineSender(args, producer, receipts, stop).run(source)
            await_receipts(producer, receipts, stop)
        finally:
            with suppress(TimeoutError):
                producer.close(timeout_s=0)
    return report_result(args, receipts, input_error, stop)


def await_receipts(producer: Producer, receipts: Receipts, stop: Stop) -> None:
    """Wait until all sends have ended; after a signal only for the grace period."""
    try:
        producer.flush(GRACE_S if stop.requested else None)
        receipts.finish()
    except (TimeoutError, Stopped):
        note("catmq: stopped waiting for receipts")
    stop.disarm()


class LineSender:
    """Passes lines of the input to the producer."""

    def __init__(
        self, args: argparse.Namespace, producer: Producer, receipts: Receipts, stop: Stop
    ) -> None:
        self._args = args
        self._producer = producer
        self._receipts = receipts
        self._stop = stop
        self._json = requires_json(args.file or "-", args.key_field)

    def run(self, source: Source) -> str | None:
        """Send until the input ends, a send fails or a signal comes.

        Returns the text of an error in the input, None if there is none.
        """
        last_number = 0
        try:
            for line in read_lines(
                source,
                stop=self._stop,
                key_field=self._args.key_field,
                json_lines=self._json,
            ):
                last_number = line.number
                if self._stop.requested or self._receipts.should_stop:
                    break
                fields = message_fields(self._args) | (
                    {"key": line.key} if self._args.key_field else {}
                )
                future = self._producer.send_async(self._args.topic, line.body, **fields)
                self._receipts.expect(line.number, future)
        except BadLine as error:
            return f"{error}\n{self._remedy(error.number)}"
        except CatmqError as error:
            return f"line {last_number}: {error}"
        except Stopped:
            pass
        return None

    def _remedy(self, number: int) -> str:
        """Return how to send the remaining lines after the bad line is corrected."""
        name = self._args.file or "-"
        if name == "-":
            return f"  Nothing from line {number} on was sent."
        cat = "zcat" if name.endswith(".gz") else "cat"
        return (
            f"  Nothing from there on was sent; go on with: {cat} {name} | tail -n "
            f"+{number} | catmq send …"
        )


class ExpectedReceipt(NamedTuple):
    """A line whose receipt is awaited."""

    line: int
    future: SendFuture


class Receipts:
    """Awaits receipts and prints them in the order of the input, in a thread of its own.

    So a program that writes lines into `catmq send TOPIC - --output json` sees each receipt
    as soon as it arrives, without writing another line first. The length of the queue
    limits the messages in flight.
    """

    def __init__(self, args: argparse.Namespace) -> None:
        # Numbers of lines.
        self.read: int = 0
        self.sent: int = 0
        self.failed: int = 0
        # The program that read the receipts has ended.
        self.reader_gone: bool = False
        # The receipts cannot be written, for example to a full disk.
        self.write_error: OSError | None = None
        self._prints = args.output != "none"
        self._lines = RowPrinter(args.output, RECEIPT, RECEIPT_WIDTHS)
        self._began = time.monotonic()
        self._progress = Progress()
        self._queue: queue.Queue[ExpectedReceipt | None] = queue.Queue(PENDING)
        self._thread = threading.Thread(
            target=self._print_receipts, name="catmq-receipts", daemon=True
        )
        self._thread.start()

    @property
    def should_stop(self) -> bool:
        """True if no more lines should be sent."""
        return self.failed > 0 or self.reader_gone or self.write_error is not None

    def expect(self, line: int, future: SendFuture) -> None:
        """Await a receipt. Blocks while PENDING receipts are awaited."""
        self.read += 1
        self._enqueue(ExpectedReceipt(line, future))

    def finish(self) -> None:
        """Return when every receipt has arrived or failed."""
        self._enqueue(None)
        self._thread.join()
        self._progress.clear()

    def rate(self) -> str:
        """Return the time it took, and the messages per second."""
        elapsed_s = max(time.monotonic() - self._began, 0.001)
        return f"in {elapsed_s:.1f} s ({self.sent / elapsed_s:.0f}/s)"

    def _enqueue(self, expected: ExpectedReceipt | None) -> None:
        """Pass a receipt to the thread, or drop it if the thread has died.

        A queue without its thread stays full, so that waiting would not end.
        """
        while self._thread.is_alive():
            with suppress(queue.Full):
                self._queue.put(expected, timeout=1)
                return

    def _print_receipts(self) -> None:
        while (expected := self._queue.get()) is not None:
            try:
                receipt = expected.future.result()
            except CatmqError as error:
                self.failed += 1
                self._progress.clear()
                if self.failed <= MAX_SHOWN_FAILURES:
                    # The thread must continue if standard error is closed.
                    with suppress(OSError):
                        note(f"catmq: line {expected.line}: {error}")
                continue
            self.sent += 1
            # After a write error receipts are still awaited, to count the stored messages.
            if self._prints and not self.reader_gone and self.write_error is None:
                try:
                    self._lines.write(receipt_row(expected.line, receipt))
                except BrokenPipeError:
                    self.reader_gone = True
                except OSError as error:
                    self.write_error = error
            self._progress.show(f"{self.sent} sent")


def report_result(
    args: argparse.Namespace, receipts: Receipts, input_error: str | None, stop: Stop
) -> int:
    """Note the counts and errors. Return the exit code."""
    if input_error:
        note(f"catmq: {input_error}")
    note(f"sent {count_noun(receipts.sent, 'message')} to {args.topic} {receipts.rate()}")
    if receipts.failed:
        note(
            f"catmq: {count_noun(receipts.failed, 'line')} not confirmed; later lines may "
            "have been sent"
        )
    unconfirmed = receipts.read - receipts.sent - receipts.failed
    if unconfirmed:
        note(f"catmq: {count_noun(unconfirmed, 'line')} without a receipt: stored or not")
    if stop.requested:
        note("catmq: interrupted: the rest of the input was not sent")
    if receipts.write_error is not None:
        note(
            "catmq: receipts could not be written, the rest of the input was not sent: "
            f"{receipts.write_error}"
        )
    if receipts.reader_gone:
        # As for any command whose reader is gone.
        raise BrokenPipeError
    incomplete = (
        input_error
        or receipts.failed
        or unconfirmed
        or stop.requested
        or receipts.write_error
    )
    return 1 if incomplete else 0


SPAN = "a span above 0 like 500ms, 30s, 15m, 2h or 7d"
SEND = Verb(
    "send",
    "send a message, or one for each line of the input",
    (
        TOPIC,
        Argument("MESSAGE", "body of one message, or - for standard input", nargs="?"),
        Argument(
            "--file FILE",
            "file with one message per line, or - for standard input; .jsonl files must "
            "have JSON lines",
        ),
        Argument("--key-field FIELD", "JSON field of each line that has the key"),
        Argument(
            "--batch N",
            "messages per request (default 500)",
            type=whole_number(1, MAX_BATCH),
            default=500,
        ),
        Argument(
            "--key KEY",
            "key of the message or of every line; messages with the same key stay in order",
        ),
        Argument("--tag TAG", "tag of the message or of every line"),
        Argument(
            "--header NAME=VALUE",
            "header of the message or of every line (repeatable)",
            type=parse_header,
            action="append",
            default=[],
        ),
        Argument(
            "--queue QUEUE",
            "id of the queue to send to; without it the key chooses",
            type=whole_number(1),
        ),
        Argument(
            "--any-queue",
            "use another queue of the topic if the one of --queue takes no messages",
        ),
        Argument(
            "--delay SPAN",
            "delay before delivery, such as 500ms, 30s, 15m, 2h or 7d",
            type=time_span(1, 10**18, SPAN, units=("ms", "s", "m", "h", "d")),
        ),
        Output(
            "none", fields=RECEIPT_FIELDS, example="{line} {message_id}", terminal="none"
        ),
    ),
    send,
)
