"""The command line as a whole: the parser, and the exit codes.

Exit codes: 0 done (also if the reader of the output is gone, or `consume` was stopped), 1
failed, 2 wrong arguments, 3 `consume` waited --idle-timeout without a single message, 4 a
named resource does not exist, 5 the key lacks a permission, 6 no broker answers, or not the
node that is needed: try again later. `doctor` ends with 1 for warnings and 2 for errors.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Sequence
from functools import cache
from typing import Any

from catmq_client.cli.arguments import (
    broker_urls,
    escape_bytes,
    is_text,
    join_dashed_values,
    options_with_value,
)
from catmq_client.cli.connection import Brokers, Command, resolve_brokers
from catmq_client.cli.manage import (
    cluster,
    dead_letters,
    definitions,
    groups,
    keys,
    offsets,
    shares,
    subscriptions,
    topics,
)
from catmq_client.cli.messages import consume, delayed, find, peek, send
from catmq_client.cli.output import note
from catmq_client.cli.verbs import (
    Argument,
    Noun,
    Parser,
    Verb,
    listed_options,
    suggest,
    with_output_form,
)
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
EXIT_CODES: dict[tuple[type[CatmqError], ...], int] = {
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
    keys.NOUN,
    cluster.QUOTA,
    cluster.DOCTOR,
    cluster.NODES,
    cluster.BROKERS,
    cluster.BROKER_NOUN,
)


COMPLETION_SHELLS = ("bash", "zsh", "tcsh")


class Completion(argparse.Action):
    """Prints the completion script of a shell, which the package shtab generates."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: object,
        shell: Any,
        flag: str | None = None,
    ) -> None:
        try:
            import shtab
        except ImportError:
            parser.error("--completion needs a package: pip install shtab")
        sys.stdout.write(f"{shtab.complete(parser, shell)}\n")
        parser.exit()


CONNECTION_OPTIONS = (
    Argument(
        "--url URL",
        "broker URLs, separated by commas (default: CATMQ_URL)",
        type=broker_urls,
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
def build_parser() -> argparse.ArgumentParser:
    """Return the parser of all commands, built once in a process."""
    # These options are accepted before and after the command. Those after it have no
    # default, so an absent option does not overwrite a value that was set before the
    # command.
    common = argparse.ArgumentParser(add_help=False)
    parser = Parser(
        prog="catmq",
        description="Send, consume and manage CatMQ.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--version",
        action="version",
        version=f"catmq {VERSION}",
        help="print the version and exit",
    )
    parser.add_argument(
        "--completion",
        action=Completion,
        choices=COMPLETION_SHELLS,
        help="print the completion script of a shell and exit",
    )
    for option in CONNECTION_OPTIONS:
        option.add(parser)
        option.optional().add(common)
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for entry in COMMANDS:
        entry.add(commands, common)
    return parser


def parse_arguments(argv: Sequence[str]) -> argparse.Namespace:
    """Parse the arguments. Wrong arguments end the program with exit code 2."""
    parser = build_parser()
    # Checked for all arguments at once: each of them may end up in JSON or in a URL.
    for argument in argv:
        if not is_text(argument):
            parser.error(f"an argument is not UTF-8 text: {escape_bytes(argument)}")
    args, unparsed = parser.parse_known_args(
        join_dashed_values(argv, options_with_value(parser))
    )
    # argparse fills an optional positional only directly after the first positional. In
    # `send TOPIC --key K -` it leaves the `-` unparsed.
    if (
        len(unparsed) == 1
        and getattr(args, "message", "") is None
        and (unparsed[0] == "-" or unparsed[0][:1] != "-")
    ):
        args.message = unparsed.pop()
    if unparsed:
        hint = (
            suggest(unparsed[0].partition("=")[0], listed_options(args.parser))
            if unparsed[0].startswith("-")
            else ""
        )
        args.parser.error(f"unrecognized arguments: {' '.join(unparsed)}{hint}")
    return with_output_form(args)


def main(argv: Sequence[str] | None = None, *, transport: Transport | None = None) -> int:
    """Run a command and return its exit code. Without a command, print the help.

    `transport` replaces the network, for tests.
    """
    arguments = sys.argv[1:] if argv is None else argv
    if not arguments:
        build_parser().print_help()
        return DONE
    args = parse_arguments(arguments)
    logging.basicConfig(
        level=logging.WARNING, stream=sys.stderr, format="catmq: %(message)s"
    )
    try:
        brokers = resolve_brokers(args, transport)
    except OptionError as error:
        note(f"catmq: {error}")
        return WRONG
    return run_command(args, brokers)


def run_command(args: argparse.Namespace, brokers: Brokers) -> int:
    """Run the command and return its exit code. Errors are printed."""
    command: Command = args.command
    try:
        return command(args, brokers)
    except OptionError as error:
        note(f"catmq: {error}")
        return WRONG
    except CatmqError as error:
        note(f"catmq: {brokers.explain(error)}")
        return exit_code_of(error)
    except BrokenPipeError:
        # The reader has all it wants, as `head` in a pipe: that is no failure.
        silence_stdout()
        return DONE
    except KeyboardInterrupt:
        note("catmq: interrupted")
    except OSError as error:
        prefix = f"{error.filename}: " if error.filename else ""
        note(f"catmq: {prefix}{error.strerror or error}")
    return FAILED


def exit_code_of(error: CatmqError) -> int:
    """Return the exit code for an error.

    >>> exit_code_of(NotFound("no such topic")), exit_code_of(CatmqError("another"))
    (4, 1)
    """
    return next(
        (
            code
            for error_classes, code in EXIT_CODES.items()
            if isinstance(error, error_classes)
        ),
        FAILED,
    )


def silence_stdout() -> None:
    """Redirect standard output to /dev/null, after its reader is gone.

    Otherwise Python prints an error at exit, when it flushes the last bytes.
    """
    try:
        descriptor = sys.stdout.fileno()
    except OSError:
        # Standard output is not a file, so nothing is flushed at exit.
        return
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, descriptor)
    os.close(null)
