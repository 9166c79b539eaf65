"""catmq consume: the messages of a topic for a group, each in a line.

A message is done when its line is flushed, and only done messages are committed. However
the command ends, the next member continues with the first message whose line was not
written.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping
from typing import Any

from catmq_client import Consumer, ShareConsumer, ShareMessage
from catmq_client.cli.arguments import positive_seconds, time_span, whole_number
from catmq_client.cli.connection import Brokers
from catmq_client.cli.output import MessagePrinter, message_row, note
from catmq_client.cli.stop import Stop, Stopped
from catmq_client.cli.verbs import MESSAGES, TOPIC, Argument, Verb
from catmq_client.errors import CatmqError, CommitFailed, ConnectFailed, OptionError
from catmq_client.http.transport import Transport
from catmq_client.message import AssignedQueue, Message

# exit code: --idle-timeout passed without a single message
IDLE = 3
# time between two checks of signals and clock while the command waits
LOOK_S = 0.25
# with --idle-timeout: brokers and nodes may fail to answer for this time, in s
AWAY_S = 120.0
# the last commit is tried for this time, in s, if no broker answers
CLOSE_S = 10.0
SESSION_MS = (2_000, 300_000)
# longest wait of a pull at the broker
MAX_WAIT_MS = 30_000
# Name of the program in `sdk`. A group it creates raises no alarm after it has left.
SDK_NAME = "catmq-cli/"
# ends of the paths of requests that return messages
PULL_PATHS = ("/pull", "/share")
# end of the names of failure topics; users cannot create such names
FAILURE_SUFFIX = "_fail"
# States of a queue without messages to deliver. In any other state there may be some.
QUIET_STATES = ("ok", "stopped")


def consume(args: argparse.Namespace, brokers: Brokers) -> int:
    """Print messages until stopped. Exit code 3 if --idle-timeout passes without a message."""
    if args.mode == "broadcasting" and args.instance is None:
        raise OptionError(
            "--mode broadcasting needs --instance NAME: offsets are stored for each instance"
        )
    if args.share and (args.mode or args.instance):
        raise OptionError(
            "--share with --mode or --instance: members of a share group have neither"
        )
    watch = Watch(brokers.network())
    printer = Printer(args, watch)
    with Stop() as stop:
        consumer = create_consumer(args, watch)
        try:
            printer.run(consumer, stop)
        finally:
            stop.disarm()
            consumer.close(timeout_s=CLOSE_S)
    note(f"{printer.printed} messages of {args.topic} for group {args.group}")
    return IDLE if printer.idle and not printer.printed else 0


def create_consumer(args: argparse.Namespace, watch: Watch) -> Consumer | ShareConsumer:
    """Return a consumer of the kind that the arguments name."""
    options = {
        "transport": watch,
        "group": args.group,
        "topics": [args.topic],
        "auto_offset_reset": args.start,
        "fetch_max_wait_ms": fetch_wait_ms(args.idle_timeout),
        "session_timeout_ms": args.session_timeout_ms,
    }
    if args.share:
        return ShareConsumer(**options)
    consumer: Consumer = Consumer(
        on_assigned=lambda queues: pause_other_topics(consumer, args, queues),
        mode=args.mode,
        instance_id=args.instance,
        **options,
    )
    return consumer


def pause_other_topics(
    consumer: Consumer, args: argparse.Namespace, queues: list[AssignedQueue]
) -> None:
    """Pause queues of other topics that the group reads, and note it.

    Otherwise messages of those topics would be delivered here and be missing for the
    members that handle them.
    """
    other_queues = [queue for queue in queues if queue.topic != args.topic]
    for queue in other_queues:
        consumer.pause(queue.queue)
        # A seek drops the messages that were fetched already.
        consumer.seek(queue.queue, consumer.position(queue.queue))
    # Failure topics are created by the system for every group, so they are not noted.
    for topic in sorted(
        {queue.topic for queue in other_queues if not queue.topic.endswith(FAILURE_SUFFIX)}
    ):
        queue_ids = ", ".join(
            str(queue.queue) for queue in other_queues if queue.topic == topic
        )
        note(
            f"group {args.group} also reads {topic}: its queues {queue_ids} are not read meanwhile"
        )


def fetch_wait_ms(idle_timeout_s: float | None) -> int:
    """Return the wait of a pull at the broker, in ms.

    With an idle timeout it is half of that, so that an answer comes within the timeout.
    """
    return (
        MAX_WAIT_MS
        if idle_timeout_s is None
        else min(MAX_WAIT_MS, max(50, int(idle_timeout_s * 500)))
    )


class Watch:
    """A transport that knows how long there has been nothing to deliver.

    A missing answer does not count as idle, since that broker or node may have messages.
    Watch also replaces the name of the program in registrations.
    """

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self.urls_from: str = getattr(transport, "urls_from", "")
        # Monotonic start of the first pull of the present idle time, None if messages may
        # be waiting.
        self._idle_since: float | None = None
        self._away_since = time.monotonic()

    @property
    def urls(self) -> tuple[str, ...]:
        """See HttpTransport. With it the consumer sees whether all brokers lost metadata."""
        return getattr(self._transport, "urls", ())

    def request(
        self, method: str, path: str, *, body: Mapping[str, Any] | None = None, **more: Any
    ) -> dict[str, Any]:
        """See Transport. Notes whether a pull's answer shows that no queue has messages."""
        began_at = time.monotonic()
        # The broker reads the name of the program in `sdk` when a consumer registers.
        if path.endswith("/consumers") and body is not None:
            body = {**body, "sdk": body["sdk"].replace("catmq-client/", SDK_NAME, 1)}
        try:
            answer = self._transport.request(method, path, body=body, **more)
        except CatmqError:
            self._note_answer(began_at, quiet=False)
            raise
        if path.endswith(PULL_PATHS):
            self._note_answer(
                began_at,
                quiet=all(queue["state"] in QUIET_STATES for queue in answer["queues"]),
            )
        return answer

    def idle_s(self) -> float:
        """Return for how long all queues have had nothing to deliver, in seconds."""
        since = self._idle_since
        return 0.0 if since is None else time.monotonic() - since

    def away_s(self) -> float:
        """Return for how long a broker or node has not answered, in seconds."""
        return time.monotonic() - self._away_since if self._idle_since is None else 0.0

    def _note_answer(self, began_at: float, *, quiet: bool) -> None:
        """Start the idle time with a quiet answer, end it with any other or a failure.

        `quiet` means that no queue has a message. The idle time starts when the pull began.
        """
        if not quiet and self._idle_since is not None:
            self._idle_since, self._away_since = None, time.monotonic()
        elif quiet and self._idle_since is None:
            self._idle_since = began_at


class Printer:
    """Prints the messages of a consumer."""

    def __init__(self, args: argparse.Namespace, watch: Watch) -> None:
        self._args = args
        self._watch = watch
        self._lines = MessagePrinter(args.output)
        self._last_message_at = time.monotonic()
        self.printed: int = 0
        self.idle: bool = False

    def run(self, consumer: Consumer | ShareConsumer, stop: Stop) -> None:
        """Print until --limit, --idle-timeout or a signal, then commit.

        Messages are polled singly: when the next message is requested, the consumer counts
        the previous message as handled, and its line is flushed by then. If a line is not
        written, closing the consumer commits the messages before it. Raises BrokenPipeError
        if the reader is gone.
        """
        try:
            limit = self._args.limit
            while not (
                stop.requested
                or (limit is not None and self.printed >= limit)
                or self._is_idle()
            ):
                for message in consumer.poll(max_messages=1, timeout_s=LOOK_S):
                    self._print(message)
            stop.disarm()
            consumer.commit()
        except CommitFailed as error:
            note(f"catmq: {error}")
        except Stopped:
            # A signal came while a line was written, which the reader does not read.
            raise BrokenPipeError from None

    def _print(self, message: Message) -> None:
        fields = {name: getattr(message, name) for name in FIELDS}
        row = message_row(message.topic, {**fields, "body_bytes": message.body})
        if isinstance(message, ShareMessage):
            row["deliveries"] = message.deliveries
        self._lines.write(row, message.body)
        self.printed += 1
        self._last_message_at = time.monotonic()

    def _is_idle(self) -> bool:
        limit_s = self._args.idle_timeout
        if limit_s is None:
            return False
        # Without answers the topic may have messages, so the command fails instead of
        # ending as idle.
        if self._watch.away_s() > max(AWAY_S, limit_s):
            raise ConnectFailed(f"brokers or nodes have not answered for {AWAY_S:.0f} s")
        self.idle = (
            min(self._watch.idle_s(), time.monotonic() - self._last_message_at) >= limit_s
        )
        return self.idle


FIELDS = (
    "queue",
    "offset",
    "message_id",
    "key",
    "tag",
    "headers",
    "stored_at_ms",
    "attempt",
)

CONSUME = Verb(
    "consume",
    "read a topic as a member of a group, print the messages, and commit",
    (
        TOPIC,
        Argument(
            "--group GROUP", "consumer group; created and subscribed if new", required=True
        ),
        Argument(
            "--from",
            "where to start without a committed offset (default earliest)",
            dest="start",
            choices=("earliest", "latest"),
            default="earliest",
        ),
        Argument(
            "--mode",
            "mode of a new group; members share the queues (clustering, the default), or "
            "each reads all",
            choices=("clustering", "broadcasting"),
        ),
        Argument(
            "--instance NAME",
            "instance id; in a broadcasting group each instance has its own offsets, "
            "otherwise the member keeps its queues over a quick restart",
        ),
        Argument(
            "--session-timeout SPAN",
            "session timeout of a new group (default 15s)",
            type=time_span(*SESSION_MS, "a span like 15s or 500ms, from 2s to 5m"),
            dest="session_timeout_ms",
            old="--session-timeout-ms",
            old_type=whole_number(*SESSION_MS),
        ),
        Argument(
            "--share", "share the messages of each queue with other members (a share group)"
        ),
        Argument("--limit N", "end after N messages", type=whole_number(1), old="--max"),
        Argument(
            "--idle-timeout SECONDS",
            "end after this many seconds without a message",
            type=positive_seconds,
        ),
        MESSAGES,
    ),
    consume,
)
