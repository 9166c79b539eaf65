"""The command line as a whole: all arguments, and how a command ends.

Exit codes: 0 done (also: the reader of the output went away, or `consume` was told to
stop), 1 failed, 2 the call is wrong, 3 `consume` waited --idle-timeout without a single
message, 4 what was named does not exist, 5 the key may not do that, 6 no broker, or not the
node that is needed, answers: try again later.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Sequence
from functools import cache
from typing import Any

from catmq_client.cli.arguments import is_text, joined, shown_bytes, url, with_value
from catmq_client.cli.connection import Brokers, Command, chosen
from catmq_client.cli.manage import (
    cluster,
    dead_letters,
    definitions,
    groups,
    offsets,
    shares,
    subscriptions,
    topics,
)
from catmq_client.cli.messages import consume, delayed, find, peek, send
from catmq_client.cli.output import note
from catmq_client.cli.verbs import Argument, Noun, Parser, Verb, flags, meant, with_form
from catmq_client.errors import (
    AnswerLost,
    CatmqError,
    ConnectFailed,
    Forbidden,
    NotFound,
    OptionError,
    Unauthenticated,
    Unavailable,
)
from catmq_client.http.transport import Transport
from catmq_client.version import VERSION

DONE, FAILED, WRONG = 0, 1, 2
CODES: dict[tuple[type[CatmqError], ...], int] = {
    (NotFound,): 4,
    (Unauthenticated, Forbidden): 5,
    (ConnectFailed, AnswerLost, Unavailable): 6,
}

EXAMPLES = """examples:
  catmq topic create orders --queues 4
  catmq send orders '{"item": "tea"}' --key customer-7
  catmq consume orders --group billing
  catmq tail orders
  catmq lag billing --watch

CATMQ_URL names the brokers (several with commas), CATMQ_API_KEY the key.
Results go to standard output, everything else to standard error."""

COMMANDS: tuple[Noun | Verb, ...] = (
    topics.NOUN,
    groups.NOUN,
    groups.SUBSCRIBE,
    groups.UNSUBSCRIBE,
    subscriptions.NOUN,
    send.SEND,
    consume.CONSUME,
    peek.PEEK,
    peek.TAIL,
    find.FIND,
    find.TRACES,
    delayed.DELAYED,
    delayed.RECALL,
    offsets.LAG,
    offsets.NOUN,
    shares.NOUN,
    dead_letters.NOUN,
    dead_letters.FAILED,
    definitions.EXPORT,
    definitions.IMPORT,
    cluster.QUOTA,
    cluster.NODES,
    cluster.BROKERS,
    cluster.BROKER_NOUN,
)


SHELLS = ("bash", "zsh", "tcsh")


class Completion(argparse.Action):
    """Prints the completion script of a shell, which the package shtab makes from the
    parser.
    """

    def __call__(
        self,
        whole: argparse.ArgumentParser,
        space: object,
        shell: Any,
        flag: str | None = None,
    ) -> None:
        try:
            import shtab
        except ImportError:
            whole.error(
                "--completion needs a package: pip install 'catmq-client[completion]'"
            )
        sys.stdout.write(f"{shtab.complete(whole, shell)}\n")
        whole.exit()


CONNECTION = (
    Argument(
        "--url URL", "broker URLs, separated by commas (default: CATMQ_URL)", type=url
    ),
    Argument(
        "--api-key KEY",
        "API key (default: CATMQ_API_KEY, which is not visible in the process list)",
    ),
    Argument(
        "--ca-file FILE",
        "CA certificates that verify those of the brokers (default: CATMQ_CA_FILE)",
    ),
)


@cache
def parser() -> argparse.ArgumentParser:
    """Make the parser of all commands, once in a process."""
    # Before or after the command alike: an absent option behind it hides no earlier value.
    common = argparse.ArgumentParser(add_help=False)
    whole = Parser(
        prog="catmq",
        description="Send, consume and manage CatMQ.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    whole.add_argument(
        "--version",
        action="version",
        version=f"catmq {VERSION}",
        help="print the version and exit",
    )
    whole.add_argument(
        "--completion",
        action=Completion,
        choices=SHELLS,
        help="print the completion script of a shell and exit",
    )
    for option in CONNECTION:
        option.add(whole)
        option.optional().add(common)
    commands = whole.add_subparsers(metavar="COMMAND", required=True)
    for entry in COMMANDS:
        entry.add(commands, common)
    return whole


def parsed(argv: Sequence[str]) -> argparse.Namespace:
    """Parse the arguments; a wrong call ends the program with exit code 2."""
    whole = parser()
    for word in argv:
        if not is_text(word):
            whole.error(f"an argument is not UTF-8 text: {shown_bytes(word)}")
    args, left = whole.parse_known_args(joined(argv, with_value(whole)))
    # argparse fills an optional positional only right behind the first: `send TOPIC --key K
    # -` misses the -.
    if (
        len(left) == 1
        and getattr(args, "message", "") is None
        and (left[0] == "-" or left[0][:1] != "-")
    ):
        args.message = left.pop()
    if left:
        close = (
            meant(left[0].partition("=")[0], flags(args.parser))
            if left[0].startswith("-")
            else ""
        )
        args.parser.error(f"unrecognized arguments: {' '.join(left)}{close}")
    return with_form(args)


def main(argv: Sequence[str] | None = None, *, transport: Transport | None = None) -> int:
    """Run one command and return its exit code; without one, show the help.

    `transport`: what to use instead of the network.
    """
    words = sys.argv[1:] if argv is None else argv
    if not words:
        parser().print_help()
        return DONE
    args = parsed(words)
    logging.basicConfig(
        level=logging.WARNING, stream=sys.stderr, format="catmq: %(message)s"
    )
    try:
        brokers = chosen(args, transport)
    except OptionError as error:
        note(f"catmq: {error}")
        return WRONG
    return ended(args, brokers)


def ended(args: argparse.Namespace, brokers: Brokers) -> int:
    """Run the command and turn its end into an exit code."""
    command: Command = args.command
    try:
        return command(args, brokers)
    except OptionError as error:
        note(f"catmq: {error}")
        return WRONG
    except CatmqError as error:
        note(f"catmq: {brokers.explained(error)}")
        return code_of(error)
    except BrokenPipeError:
        nobody_reads()
        return DONE
    except KeyboardInterrupt:
        note("catmq: interrupted")
    except OSError as error:
        named = f"{error.filename}: " if error.filename else ""
        note(f"catmq: {named}{error.strerror or error}")
    return FAILED


def code_of(error: CatmqError) -> int:
    """Return the exit code for an error.

    >>> code_of(NotFound("no such topic")), code_of(CatmqError("another"))
    (4, 1)
    """
    return next((code for kinds, code in CODES.items() if isinstance(error, kinds)), FAILED)


def nobody_reads() -> None:
    """Keep Python from complaining at exit that the last bytes could not be written."""
    try:
        descriptor = sys.stdout.fileno()
    except OSError:  # not a file, so nothing is written at exit
        return
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, descriptor)
    os.close(null)
