"""catmq consume: the messages of a topic for a group, one a line.

A message counts as done when its line is flushed, and only what is done is committed:
whatever ends the command, the next member goes on with the first message whose line did not
go out.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping
from typing import Any

from catmq_client import Consumer, ShareConsumer, ShareMessage
from catmq_client.cli.arguments import seconds, span, whole
from catmq_client.cli.connection import Brokers
from catmq_client.cli.output import MessageLines, message_row, note
from catmq_client.cli.stop import Stop, Stopped
from catmq_client.cli.verbs import MESSAGES, TOPIC, Argument, Verb
from catmq_client.errors import CatmqError, CommitFailed, ConnectFailed, OptionError
from catmq_client.http.transport import Transport
from catmq_client.message import Message
from catmq_client.reading.owned import AssignedQueue

IDLE = 3  # exit code: --idle-timeout passed without a single message
LOOK_S = 0.25  # how often a waiting command looks at its signals and its clock
AWAY_S = 120.0  # with --idle-timeout: for how long brokers and nodes may not answer
CLOSE_S = 10.0  # for how long the last commit is tried when brokers are away
SESSION_MS = (2_000, 300_000)
MAX_WAIT_MS = 30_000  # longest wait of a pull at the broker
TOOL = "catmq-cli/"  # a group that it makes raises no alarm once it has left
PULLS = ("/pull", "/share")  # how the paths of requests end that may bring messages
FAILURES = "_fail"  # what the name of a failure topic, and of no other, ends with
# states of a queue that has nothing to deliver; in others there may be something
QUIET = ("ok", "stopped")


def consume(args: argparse.Namespace, brokers: Brokers) -> int:
    """Print messages until told to stop; exit code 3 if there was none for all of
    --idle-timeout.
    """
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
        consumer = member(args, watch)
        try:
            printer.run(consumer, stop)
        finally:
            stop.disarm()
            consumer.close(timeout_s=CLOSE_S)
    note(f"{printer.printed} messages of {args.topic} for group {args.group}")
    return IDLE if printer.idle and not printer.printed else 0


def member(args: argparse.Namespace, watch: Watch) -> Consumer | ShareConsumer:
    """Return a consumer of the kind that the arguments name."""
    given = {
        "transport": watch,
        "group": args.group,
        "topics": [args.topic],
        "auto_offset_reset": args.start,
        "fetch_max_wait_ms": wait_ms(args.idle_timeout),
        "session_timeout_ms": args.session_timeout_ms,
    }
    if args.share:
        return ShareConsumer(**given)
    consumer: Consumer = Consumer(
        on_assigned=lambda queues: leave_alone(consumer, args, queues),
        mode=args.mode,
        instance_id=args.instance,
        **given,
    )
    return consumer


def leave_alone(
    consumer: Consumer, args: argparse.Namespace, queues: list[AssignedQueue]
) -> None:
    """Take nothing from topics that the group reads beside this one: whoever wants those
    would miss it.
    """
    others = [one for one in queues if one.topic != args.topic]
    for other in others:
        consumer.pause(other.queue)
        # lets go of what was fetched already
        consumer.seek(other.queue, consumer.position(other.queue))
    # Every group has failure topics, which the system made: nobody need hear of them.
    for topic in sorted({one.topic for one in others if not one.topic.endswith(FAILURES)}):
        waiting = ", ".join(str(one.queue) for one in others if one.topic == topic)
        note(
            f"group {args.group} also reads {topic}: its queues {waiting} are not read meanwhile"
        )


def wait_ms(idle_timeout_s: float | None) -> int:
    """Return the wait of a pull in ms: with a timeout, each must be answered well within
    it.
    """
    return (
        MAX_WAIT_MS
        if idle_timeout_s is None
        else min(MAX_WAIT_MS, max(50, int(idle_timeout_s * 500)))
    )


class Watch:
    """A transport that knows since when there has been nothing to deliver, and says which
    program registers.

    Silence is not idleness: while brokers or nodes are away there may be messages that
    nobody can bring.
    """

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self.urls_from = getattr(transport, "urls_from", "")
        # monotonic: when the first pull began that was answered
        self._since: float | None = None
        self._away_since = time.monotonic()

    @property
    def urls(self) -> tuple[str, ...]:
        """See HttpTransport: the consumer weighs with it whether all brokers have lost
        metadata.
        """
        return getattr(self._transport, "urls", ())

    def request(
        self, method: str, path: str, *, body: Mapping[str, Any] | None = None, **more: Any
    ) -> dict[str, Any]:
        """See Transport."""
        asked_at = time.monotonic()
        if path.endswith("/consumers") and body is not None:
            body = {**body, "sdk": body["sdk"].replace("catmq-client/", TOOL, 1)}
        try:
            answer = self._transport.request(method, path, body=body, **more)
        except CatmqError:
            self._note(asked_at, quiet=False)
            raise
        if path.endswith(PULLS):
            self._note(
                asked_at, quiet=all(queue["state"] in QUIET for queue in answer["queues"])
            )
        return answer

    def quiet_s(self) -> float:
        """Return the seconds for which everything has answered."""
        since = self._since
        return 0.0 if since is None else time.monotonic() - since

    def away_s(self) -> float:
        """Return the seconds for which something has not answered."""
        return time.monotonic() - self._away_since if self._since is None else 0.0

    def _note(self, asked_at: float, *, quiet: bool) -> None:
        if not quiet and self._since is not None:
            self._since, self._away_since = None, time.monotonic()
        elif quiet and self._since is None:
            self._since = asked_at


class Printer:
    """Messages of a consumer, printed."""

    def __init__(self, args: argparse.Namespace, watch: Watch) -> None:
        self._args = args
        self._watch = watch
        self._lines = MessageLines(args.output)
        self._last = time.monotonic()
        self.printed = 0
        self.idle = False

    def run(self, consumer: Consumer | ShareConsumer, stop: Stop) -> None:
        """Print until --limit, --idle-timeout or a signal, and commits; BrokenPipeError:
        nobody reads.

        One message at a time: asking for the next tells the consumer that this one's line
        is flushed. So when a line does not go out, closing the consumer commits those
        before it.
        """
        try:
            while not (stop.asked or self._enough() or self._is_idle()):
                for message in consumer.poll(max_messages=1, timeout_s=LOOK_S):
                    self._print(message)
            stop.disarm()
            consumer.commit()
        except CommitFailed as error:
            note(f"catmq: {error}")
        except Stopped:
            # told to stop, and nobody takes the line that is under way
            raise BrokenPipeError from None

    def _print(self, message: Message) -> None:
        fields = {name: getattr(message, name) for name in FIELDS}
        row = message_row(message.topic, {**fields, "body_bytes": message.body})
        if isinstance(message, ShareMessage):
            row["deliveries"] = message.deliveries
        self._lines.write(row, message.body)
        self.printed += 1
        self._last = time.monotonic()

    def _enough(self) -> bool:
        return self._args.limit is not None and self.printed >= self._args.limit

    def _is_idle(self) -> bool:
        limit_s = self._args.idle_timeout
        if limit_s is None:
            return False
        if self._watch.away_s() > max(AWAY_S, limit_s):
            raise ConnectFailed(f"brokers or nodes have not answered for {AWAY_S:.0f} s")
        self.idle = min(self._watch.quiet_s(), time.monotonic() - self._last) >= limit_s
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
            type=span(*SESSION_MS, "a span like 15s or 500ms, from 2s to 5m"),
            dest="session_timeout_ms",
            old="--session-timeout-ms",
            old_type=whole(*SESSION_MS),
        ),
        Argument(
            "--share", "share the messages of each queue with other members (a share group)"
        ),
        Argument("--limit N", "end after N messages", type=whole(1), old="--max"),
        Argument(
            "--idle-timeout SECONDS",
            "end after this many seconds without a message",
            type=seconds,
        ),
        MESSAGES,
    ),
    consume,
)
