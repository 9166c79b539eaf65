"""The base of all commands of CatMQ. An error is one line on stderr, and the exit codes are:

0  done
1  refused: change the call, or the state that it needs
2  wrong usage (argparse)
3  not possible now: repeat later
"""

from __future__ import annotations

import os
import sys
import time
from argparse import ArgumentParser
from collections.abc import Callable, Sequence
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import DatabaseError

from catmq_site.jobs import tasks
from messagestore.sweeping import Progress
from metadata import actors, secret_files
from metadata.actors import Actor
from metadata.brokers import fingerprints
from metadata.config import config
from metadata.errors import CatmqError, Code, Invalid
from metadata.installation import name_programs
from metadata.jobs.runs import Cancelled
from metadata.log_context import log_context
from metadata.rules import tls

REFUSED, RETRY_LATER = 1, 3
PROGRESS_EVERY_S = 3.0


def add_yes_option(parser: ArgumentParser) -> None:
    """Add --yes to a command that asks before it does something irreversible."""
    parser.add_argument(
        "--yes",
        action="store_true",
        help="do not ask for confirmation; required without a terminal",
    )


class CatmqCommand(BaseCommand):
    """Base of commands. Subclasses define `run`, and `add_arguments` if they have options."""

    requires_system_checks: list[str] = []  # noqa: RUF012  Django's own declaration
    # Refuse to run if the secret keys in this process's environment are not those that the
    # installation recorded.
    checks_keys = True

    def create_parser(
        self, prog_name: str, subcommand: str, **kwargs: Any
    ) -> CommandParser:
        """Return the parser, whose description names other commands as they are called here."""
        self.help = name_programs(self.help)
        return super().create_parser(prog_name, subcommand, **kwargs)

    @property
    def actor(self) -> Actor:
        return actors.command(type(self).__module__.rpartition(".")[2])

    def handle(self, *args: Any, **options: Any) -> None:
        """Run the command. An error that users can correct is one line on stderr."""
        tasks.connect()
        try:
            # With wrong keys, the command would store passwords and hashes that no broker can
            # use.
            if self.checks_keys:
                fingerprints.require_same_keys()
            with log_context(actor=self.actor):
                self.run(**options)
        except CatmqError as error:
            raise CommandError(
                format_error(error), returncode=RETRY_LATER if error.retriable else REFUSED
            ) from None
        except Cancelled as cancelled:
            raise CommandError(str(cancelled), returncode=REFUSED) from None
        except DatabaseError as error:
            reason = error.args[-1] if error.args else error
            where = config.database
            remedy = where and tls.find_remedy(
                error, host=where.host, ca=where.encryption.ca
            )
            remedy = remedy or name_programs("Is it up? Did `manage.py prepare` run?")
            text = f"The metadata database cannot be used: {reason}. {remedy}"
            raise CommandError(text, returncode=RETRY_LATER) from None

    def confirm(self, question: str, name: str, *, yes: bool) -> None:
        """Raise Invalid unless the user types `name` at the terminal, or a script passed
        --yes.
        """
        if yes:
            return
        if not sys.stdin.isatty():
            refusal = (
                f"Nothing was done. {question} {name}: give --yes, because there is no "
                "terminal."
            )
            raise Invalid(refusal, code=Code.NOT_CONFIRMED)
        self.stderr.write(f"{question} {name}? Type the name:")
        if sys.stdin.readline().strip() != name:
            raise Invalid(
                "Nothing was done: the name does not match.", code=Code.NOT_CONFIRMED
            )

    def progress_writer(self) -> Callable[[Progress], None]:
        """Return a function that writes the progress of a long run to stderr every few
        seconds.
        """
        written_at = time.monotonic()

        def write_progress(progress: Progress) -> None:
            nonlocal written_at
            if time.monotonic() - written_at >= PROGRESS_EVERY_S:
                written_at = time.monotonic()
                total = f" of {progress.total:,}" if progress.total else ""
                self.stderr.write(f"{progress.what} {progress.done:,}{total}")

        return write_progress

    def run(self, **options: Any) -> None:
        """Do the command's work. May raise any CatmqError."""
        raise NotImplementedError


def format_error(error: CatmqError) -> str:
    """Return an error in one line, with the wrong fields that its text does not name."""
    fields = [f"{field_error.field}: {field_error.message}" for field_error in error.errors]
    return "; ".join([error.detail, *(text for text in fields if text not in error.detail)])


def align_columns(table: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a table whose first row holds its headings."""
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    return ["  ".join(map(str.ljust, line, widths)).rstrip() for line in table]


def node_variable(name: str, suffix: str) -> str:
    """Return the environment variable of a node: CATMQ_NODE_<NAME>_<suffix>."""
    return f"CATMQ_NODE_{name.upper().replace('-', '_').replace('.', '_')}_{suffix}"


def find_password(name: str, username: str, suffix: str) -> str:
    """Return the password of a node's account from the environment, or from the file that
    it names. Raises Invalid if it is missing.
    """
    variable = node_variable(name, suffix)
    password = read_secret(variable)
    if username and not password:
        raise Invalid.field(
            "password",
            f"set {variable} to the password of {username}, or {variable}_FILE to its file",
        )
    return password


def read_secret(variable: str) -> str:
    """Return the secret in an environment variable, or in the file that it names with
    _FILE; "" if neither is set. Raises Invalid.
    """
    try:
        return secret_files.read_variable(os.environ, variable)
    except secret_files.SecretFileError as error:
        raise Invalid(str(error)) from None
