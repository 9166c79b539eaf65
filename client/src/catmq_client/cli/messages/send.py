"""catmq send: one message from the command line, or a stream of lines."""

from __future__ import annotations

import argparse
import queue
import sys
import threading
import time
from contextlib import suppress
from typing import Any, NamedTuple

from catmq_client import Producer
from catmq_client.cli.arguments import header, span, whole
from catmq_client.cli.connection import Brokers
from catmq_client.cli.messages.lines import BadLine, Source, is_json, lines, opened
from catmq_client.cli.output import (
    Columns,
    Lines,
    Progress,
    at,
    fields,
    moment,
    note,
    number_of,
)
from catmq_client.cli.stop import GRACE_S, Stop, Stopped
from catmq_client.cli.verbs import TOPIC, Argument, Output, Verb
from catmq_client.errors import CatmqError
from catmq_client.sending.receipts import Receipt, SendFuture

MAX_BATCH = 1000  # the API's limit of messages a request
PENDING = 10_000  # messages sent and not yet confirmed
BUFFER_BYTES = 32 * 1024 * 1024
RECEIPT_FIELDS = ("line", "topic", "queue", "offset", "message_id", "due_at_ms")
RECEIPT: Columns = {**fields("line queue offset message_id"), "DUE": at("due_at_ms")}
RECEIPT_WIDTHS = (7, 6, 10, 14, 0)
SHOWN = 10  # failed lines that are told one by one


def send(args: argparse.Namespace, brokers: Brokers) -> int:
    """Send; exit code 0 when everything is stored."""
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
        receipt = producer.send(args.topic, args.message, **extras(args))
    if args.output != "none":
        Lines(args.output, RECEIPT, RECEIPT_WIDTHS).write(receipt_row(1, receipt))
    where = f"queue {receipt.queue}, offset {receipt.offset}"
    if receipt.due_at_ms is not None:
        where = f"{receipt.message_id}, due {moment(receipt.due_at_ms)}"
    note(f"sent 1 message to {args.topic}: {where}")
    return 0


def extras(args: argparse.Namespace) -> dict[str, Any]:
    """Return what every message of the call carries beside its body: key, tag, headers,
    queue and delay.
    """
    return {
        "key": args.key,
        "tag": args.tag,
        "headers": dict(args.header),
        "queue": args.queue,
        "queue_strict": not args.any_queue,
        "delay_ms": args.delay,
    }


def receipt_row(line: int, receipt: Receipt) -> dict[str, Any]:
    """Return a receipt as JSON: where the message of that input line is stored, or when it
    comes there.
    """
    told = receipt._asdict()
    left_out = ("due_at_ms",) if receipt.due_at_ms is None else ("queue", "offset")
    return {
        "line": line,
        **{name: value for name, value in told.items() if name not in left_out},
    }


def send_lines(args: argparse.Namespace, brokers: Brokers) -> int:
    """Send the lines of the input; lines before a fault are sent and counted."""
    name = args.file or "-"
    if name == "-" and sys.stdin.isatty():
        note("One message a line; Ctrl-D ends.")
    # A full buffer waits as long as the oldest message in it may take: that one then says
    # what is wrong.
    options = {
        "batch_messages": args.batch,
        "buffer_bytes": BUFFER_BYTES,
        "max_block_ms": 150_000,
    }
    with Stop() as stop, opened(name) as source:
        producer = brokers.producer(**options)
        receipts = Receipts(args)
        try:
            fault = Sending(args, producer, receipts, stop).run(source)
            settle(producer, receipts, stop)
        finally:
            with suppress(TimeoutError):
                producer.close(timeout_s=0)
    return conclusion(args, receipts, fault, stop)


def settle(producer: Producer, receipts: Receipts, stop: Stop) -> None:
    """Wait for what is under way; after a signal only for the grace period."""
    try:
        producer.flush(GRACE_S if stop.asked else None)
        receipts.finish()
    except (TimeoutError, Stopped):
        note("catmq: stopped waiting for receipts")
    stop.disarm()


class Sending:
    """Lines on their way to the producer."""

    def __init__(
        self, args: argparse.Namespace, producer: Producer, receipts: Receipts, stop: Stop
    ) -> None:
        self._args = args
        self._producer = producer
        self._receipts = receipts
        self._stop = stop
        self._json = is_json(args.file or "-", args.key_field)

    def run(self, source: Source) -> str | None:
        """Send until the input ends, a send fails or a signal comes; return the fault of
        the input.
        """
        last = 0
        try:
            for line in lines(
                source,
                stop=self._stop,
                key_field=self._args.key_field,
                json_lines=self._json,
            ):
                last = line.number
                if self._stop.asked or self._receipts.over:
                    break
                more = extras(self._args) | (
                    {"key": line.key} if self._args.key_field else {}
                )
                future = self._producer.send_async(self._args.topic, line.body, **more)
                self._receipts.expect(line.number, future)
        except BadLine as error:
            return f"{error}\n{self._remedy(error.number)}"
        except CatmqError as error:
            return f"line {last}: {error}"
        except Stopped:
            pass
        return None

    def _remedy(self, number: int) -> str:
        """Return a hint on how to go on after the line is mended, for a file that tail can
        read.
        """
        name = self._args.file or "-"
        if name == "-":
            return f"  Nothing from line {number} on was sent."
        cat = "zcat" if name.endswith(".gz") else "cat"
        return (
            f"  Nothing from there on was sent; go on with: {cat} {name} | tail -n "
            f"+{number} | catmq send …"
        )


class Expected(NamedTuple):
    """A line whose receipt is awaited."""

    line: int
    future: SendFuture


class Receipts:
    """Receipts, awaited and printed in the order of the input, in a thread of its own.

    So a program that writes lines into `catmq send TOPIC - --output json` sees each receipt
    as soon as there is one, without writing another line first. The queue's limit bounds
    what is under way.
    """

    def __init__(self, args: argparse.Namespace) -> None:
        self.read = 0
        self.sent = 0
        self.failed = 0
        self.unread = False  # whoever read the receipts has gone
        self.unwritable: OSError | None = None  # they cannot be written: a full disk
        self._wanted = args.output != "none"
        self._lines = Lines(args.output, RECEIPT, RECEIPT_WIDTHS)
        self._began = time.monotonic()
        self._progress = Progress()
        self._queue: queue.Queue[Expected | None] = queue.Queue(PENDING)
        self._thread = threading.Thread(
            target=self._work, name="catmq-receipts", daemon=True
        )
        self._thread.start()

    @property
    def over(self) -> bool:
        """Return True if no more is to be sent."""
        return self.failed > 0 or self.unread or self.unwritable is not None

    def expect(self, line: int, future: SendFuture) -> None:
        """Await one more; blocks while too many are under way."""
        self.read += 1
        self._put(Expected(line, future))

    def finish(self) -> None:
        """Return when every receipt has come, or failed to."""
        self._put(None)
        self._thread.join()
        self._progress.end()

    def rate(self) -> str:
        """Return the time it took, and messages a second."""
        took_s = max(time.monotonic() - self._began, 0.001)
        return f"in {took_s:.1f} s ({self.sent / took_s:.0f}/s)"

    def _put(self, expected: Expected | None) -> None:
        """Hand it to the thread; a thread that has died takes nothing, so it is not waited
        for.
        """
        while self._thread.is_alive():
            with suppress(queue.Full):
                self._queue.put(expected, timeout=1)
                return

    def _work(self) -> None:
        while (expected := self._queue.get()) is not None:
            try:
                self._sent(expected.line, expected.future.result())
            except CatmqError as error:
                self._lost(expected.line, error)

    def _sent(self, line: int, receipt: Receipt) -> None:
        self.sent += 1
        if self._wanted and not self.unread and self.unwritable is None:
            try:
                self._lines.write(receipt_row(line, receipt))
            except BrokenPipeError:
                self.unread = True
            except OSError as error:
                self.unwritable = error
        self._progress.tell(f"{self.sent} sent")

    def _lost(self, line: int, error: CatmqError) -> None:
        self.failed += 1
        self._progress.end()
        if self.failed <= SHOWN:
            with suppress(OSError):
                note(f"catmq: line {line}: {error}")


def conclusion(
    args: argparse.Namespace, receipts: Receipts, fault: str | None, stop: Stop
) -> int:
    """Note the counts and faults; return the exit code."""
    if fault:
        note(f"catmq: {fault}")
    note(f"sent {number_of(receipts.sent, 'message')} to {args.topic} {receipts.rate()}")
    if receipts.failed:
        note(
            f"catmq: {number_of(receipts.failed, 'line')} not confirmed; later lines may "
            "have been sent"
        )
    unknown = receipts.read - receipts.sent - receipts.failed
    if unknown:
        note(f"catmq: {number_of(unknown, 'line')} without a receipt: stored or not")
    if stop.asked:
        note("catmq: interrupted: the rest of the input was not sent")
    if receipts.unwritable is not None:
        note(
            "catmq: receipts could not be written, the rest of the input was not sent: "
            f"{receipts.unwritable}"
        )
    if receipts.unread:
        raise BrokenPipeError
    wrong = fault or receipts.failed or unknown or stop.asked or receipts.unwritable
    return 1 if wrong else 0


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
            type=whole(1, MAX_BATCH),
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
            type=header,
            action="append",
            default=[],
        ),
        Argument(
            "--queue QUEUE",
            "id of the queue to send to; without it the key chooses",
            type=whole(1),
        ),
        Argument(
            "--any-queue",
            "use another queue of the topic if the one of --queue takes no messages",
        ),
        Argument(
            "--delay SPAN",
            "delay before delivery, such as 500ms, 30s, 15m, 2h or 7d",
            type=span(1, 10**18, SPAN, units=("ms", "s", "m", "h", "d")),
        ),
        Output(
            "none", known=RECEIPT_FIELDS, example="{line} {message_id}", terminal="none"
        ),
    ),
    send,
)
