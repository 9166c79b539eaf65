"""catmq dead list | summary | show | redrive | redrives | stop | drop, catmq failed"""

from __future__ import annotations

import argparse
from itertools import islice
from typing import Any

from catmq_client.admin.dead_letters import Redrive
from catmq_client.cli.arguments import whole
from catmq_client.cli.confirm import confirmed
from catmq_client.cli.connection import Brokers, Command
from catmq_client.cli.output import add_output, json_line, moment, note, show, table, text_or_base64, write
from catmq_client.errors import OptionError

ERROR_CHARS = 60  # of an error in a table


def add(commands: Any, common: argparse.ArgumentParser) -> None:
    """The arguments of `catmq dead` and `catmq failed`."""
    noun = commands.add_parser("dead", help="messages without a retry left: list, show, redrive, drop")
    verbs = noun.add_subparsers(metavar="VERB", required=True)
    lister = _verb(verbs, common, list_dead, name="list", text="dead messages of a group, the newest first")
    _add_filter(lister)
    lister.add_argument("--limit", type=whole(1), default=50, metavar="N", help="so many (default 50)")
    add_output(lister, "table")
    counter = _verb(verbs, common, summarize, name="summary", text="how many there are of each kind of error")
    counter.add_argument("--topic", metavar="TOPIC", help="only of this topic")
    add_output(counter, "table")
    shower = _verb(verbs, common, show_dead, name="show", text="one dead message with headers and body")
    shower.add_argument("id", metavar="ID", help="as `catmq dead list` shows it")
    _add_redrive(verbs, common)
    dropper = _verb(verbs, common, drop, name="drop", text="delete dead messages for good")
    _add_choice(dropper)
    dropper.add_argument("--yes", action="store_true", help="do not ask; needed where no terminal is")
    waiting = commands.add_parser(
        "failed", parents=[common], help="messages of a group that wait for a retry"
    )
    waiting.add_argument("group", metavar="GROUP")
    waiting.add_argument("--topic", metavar="TOPIC", help="only of this topic")
    waiting.add_argument(
        "--limit", type=whole(1, 1000), default=50, metavar="N", help="so many messages (default 50)"
    )
    add_output(waiting, "table")
    waiting.set_defaults(command=list_failed)


def _verb(
    verbs: Any, common: argparse.ArgumentParser, command: Command, *, name: str, text: str
) -> argparse.ArgumentParser:
    made: argparse.ArgumentParser = verbs.add_parser(name, parents=[common], help=text)
    made.add_argument("group", metavar="GROUP")
    made.set_defaults(command=command)
    return made


def _add_filter(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--topic", metavar="TOPIC", help="only of this topic")
    parser.add_argument("--error", metavar="KIND", help="only of this kind of error, such as ValueError")


def _add_choice(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("id", metavar="ID", nargs="*", help="as `catmq dead list` shows them")
    _add_filter(parser)
    parser.add_argument("--all", action="store_true", help="every dead message of the group")


def _add_redrive(verbs: Any, common: argparse.ArgumentParser) -> None:
    redriver = _verb(
        verbs, common, redrive, name="redrive", text="bring dead messages back, in the background"
    )
    _add_choice(redriver)
    redriver.add_argument(
        "--to",
        choices=("group", "topic"),
        default="group",
        help="group: as retries of this group (default); topic: sent anew, every group gets them",
    )
    redriver.add_argument(
        "--rate", type=whole(1, 10_000), metavar="N", help="messages a second (default 200)"
    )
    add_output(redriver, "table")
    past = _verb(verbs, common, list_redrives, name="redrives", text="redrives of a group, the newest first")
    past.add_argument("--limit", type=whole(1, 1000), default=20, metavar="N", help="so many (default 20)")
    add_output(past, "table")
    stopper = _verb(
        verbs, common, stop, name="stop", text="stop a redrive; what it has brought back stays so"
    )
    stopper.add_argument("redrive", type=whole(1), metavar="REDRIVE", help="its id")


def list_dead(args: argparse.Namespace, brokers: Brokers) -> int:
    """Lists dead messages, as a table or one object a line."""
    dead = brokers.admin().dead
    rows = islice(
        dead.messages(args.group, topic=args.topic, error=args.error, page=min(args.limit, 500)), args.limit
    )
    if args.output == "json":
        for row in rows:
            write(json_line(row))
        return 0
    show(
        table(
            ["ID", "DIED", "TOPIC", "MESSAGE", "KEY", "ATTEMPTS", "ERROR"],
            [
                (
                    row["id"],
                    moment(row["died_at_ms"]),
                    row["topic"],
                    f"{row['queue']}-{row['offset']}",
                    row["key"],
                    row["attempts"],
                    _line(row["error"]),
                )
                for row in rows
            ],
        )
    )
    return 0


def _line(error: str) -> str:
    """The first line of an error, as a table shows it."""
    first = error.strip().splitlines()[0] if error.strip() else ""
    return first if len(first) <= ERROR_CHARS else first[: ERROR_CHARS - 1] + "…"


def summarize(args: argparse.Namespace, brokers: Brokers) -> int:
    """Counts dead messages by topic and kind of error."""
    found = brokers.admin().dead.summary(args.group, topic=args.topic)
    if args.output == "json":
        for one in found["errors"]:
            write(json_line(one))
    else:
        show(
            table(
                ["TOPIC", "ERROR", "MESSAGES", "FIRST", "LAST"],
                [
                    (
                        one["topic"],
                        one["error_class"],
                        one["count"],
                        moment(one["first_at_ms"]),
                        moment(one["last_at_ms"]),
                    )
                    for one in found["errors"]
                ],
            )
        )
    _tell_away(found["away"])
    return 0


def _tell_away(nodes: list[str]) -> None:
    if nodes:
        note(f"not known, because these nodes do not answer: {', '.join(nodes)}")


def show_dead(args: argparse.Namespace, brokers: Brokers) -> int:
    """Writes one dead message as a JSON object."""
    message = brokers.admin().dead.message(args.group, args.id)
    body = message.pop("body_bytes")
    plain = {name: value for name, value in message.items() if not name.startswith("body")}
    write(json_line({**plain, **text_or_base64(body)}))
    return 0


def _chosen(args: argparse.Namespace) -> dict[str, Any]:
    """Return the choice of messages that the arguments make. Raises OptionError unless that is clear."""
    if args.id and (args.topic or args.error or args.all):
        raise OptionError("give ids, or --topic and --error, or --all: not both")
    if not (args.id or args.topic or args.error or args.all):
        raise OptionError("say which: ids, --topic, --error, or --all for every one")
    return {
        "ids": args.id or None,
        "topic": args.topic,
        "error": args.error,
        "everything": args.all,
    }


def redrive(args: argparse.Namespace, brokers: Brokers) -> int:
    """Begins a redrive and shows it."""
    made = brokers.admin().dead.redrive(args.group, to=args.to, rate=args.rate, **_chosen(args))
    _show_redrives([made], args.output)
    note(f"how far it is: catmq dead redrives {args.group}")
    note(f"to stop it: catmq dead stop {args.group} {made['id']}")
    return 0


def list_redrives(args: argparse.Namespace, brokers: Brokers) -> int:
    """Lists redrives, as a table or one object a line."""
    _show_redrives(brokers.admin().dead.redrives(args.group, limit=args.limit), args.output)
    return 0


def _show_redrives(rows: list[Redrive], output: str) -> None:
    if output == "json":
        for row in rows:
            write(json_line(row))
        return
    show(
        table(
            ["ID", "STATE", "TO", "TOPIC", "ERROR", "REDRIVEN", "OF", "SKIPPED", "BEGAN", "DETAIL"],
            [
                (
                    row["id"],
                    row["state"],
                    row["to"],
                    row["topic"],
                    row["error"],
                    row["redriven"],
                    row["total"],
                    row["skipped"],
                    moment(row["created_at_ms"]),
                    row["detail"] or None,
                )
                for row in rows
            ],
        )
    )


def stop(args: argparse.Namespace, brokers: Brokers) -> int:
    """Stops a redrive."""
    brokers.admin().dead.stop_redrive(args.group, args.redrive)
    note(f"redrive {args.redrive} is stopped")
    return 0


def drop(args: argparse.Namespace, brokers: Brokers) -> int:
    """Drops dead messages for good."""
    chosen = _chosen(args)
    if not confirmed("the dead messages that are meant, of group", args.group, yes=args.yes):
        return 1
    note(f"{brokers.admin().dead.drop(args.group, **chosen)} dead messages dropped")
    return 0


def list_failed(args: argparse.Namespace, brokers: Brokers) -> int:
    """Lists what waits for a retry, as tables or one object a line."""
    found = brokers.admin().dead.failed(args.group, topic=args.topic, limit=args.limit)
    if args.output == "json":
        for row in found["messages"]:
            write(json_line(row))
        _tell_away(found["away"])
        return 0
    show(
        table(
            ["TOPIC", "WAITING", "UNREAD", "FAILURE TOPIC"],
            [(one["topic"], one["waiting"], one["unread"], one["failure_topic"]) for one in found["topics"]],
        )
    )
    if found["messages"]:
        show("\n")
        show(
            table(
                ["DUE", "TOPIC", "MESSAGE", "KEY", "RETRY", "ERROR"],
                [
                    (
                        moment(row["due_at_ms"]),
                        row["topic"],
                        f"{row['queue']}-{row['offset']}",
                        row["key"],
                        row["attempt"],
                        _line(row["error"]),
                    )
                    for row in found["messages"]
                ],
            )
        )
    _tell_away(found["away"])
    return 0
