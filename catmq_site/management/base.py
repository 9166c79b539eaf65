"""The base of all commands of CatMQ: one clear line per error, and exit codes.

0  done        1  refused: mend the call or the state it meets
2  wrong usage (argparse)        3  not possible now: repeat later
"""

from __future__ import annotations

import os
import sys
import time
from argparse import ArgumentParser
from collections.abc import Callable, Sequence
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.db import DatabaseError

from catmq_site.jobs import tasks
from messagestore.sweeping import Progress
from metadata import actors
from metadata.actors import Actor
from metadata.brokers import fingerprints
from metadata.config import config
from metadata.errors import CatmqError, Code, Invalid
from metadata.jobs.runs import Cancelled
from metadata.rules import tls

REFUSED, LATER = 1, 3
PROGRESS_EVERY_S = 3.0


def add_yes(parser: ArgumentParser) -> None:
    """The option of a command that asks before it does what cannot be taken back."""
    parser.add_argument(
        "--yes",
        action="store_true",
        help="do not ask for confirmation; required without a terminal",
    )


class CatmqCommand(BaseCommand):
    """A command that calls one verb; subclasses have `add_arguments` and `run`."""

    requires_system_checks: list[str] = []  # noqa: RUF012  Django's own declaration
    # before anything else: are the keys of this process those of the installation?
    checks_keys = True

    @property
    def actor(self) -> Actor:
        return actors.command(type(self).__module__.rpartition(".")[2])

    def handle(self, *args: Any, **options: Any) -> None:
        """Run the command; an error that users can mend is one line on stderr."""
        tasks.connect()
        try:
            if self.checks_keys:
                fingerprints.require_same_keys()
            self.run(**options)
        except CatmqError as error:
            raise CommandError(
                one_line(error), returncode=LATER if error.retriable else REFUSED
            ) from None
        except Cancelled as stop:
            raise CommandError(str(stop), returncode=REFUSED) from None
        except DatabaseError as error:
            said = error.args[-1] if error.args else error
            text = f"The metadata database cannot be used: {said}. {_advice(error)}"
            raise CommandError(text, returncode=LATER) from None

    def confirm(self, what: str, name: str, *, yes: bool) -> None:
        """Raise Invalid unless a person at the terminal types the name again, or a script
        said --yes.
        """
        if yes:
            return
        if not sys.stdin.isatty():
            said = f"Nothing was done. {what} {name}: give --yes, because there is no terminal."
            raise Invalid(said, code=Code.NOT_CONFIRMED)
        self.stderr.write(f"{what} {name}? Type the name:")
        if sys.stdin.readline().strip() != name:
            raise Invalid(
                "Nothing was done: the name does not match.", code=Code.NOT_CONFIRMED
            )

    def progress(self) -> Callable[[Progress], None]:
        """Return a listener that says on stderr, now and then, where a long run is."""
        said_at = time.monotonic()

        def say(progress: Progress) -> None:
            nonlocal said_at
            if time.monotonic() - said_at >= PROGRESS_EVERY_S:
                said_at = time.monotonic()
                of = f" of {progress.total:,}" if progress.total else ""
                self.stderr.write(f"{progress.what} {progress.done:,}{of}")

        return say

    def run(self, **options: Any) -> None:
        """The command itself. May raise any CatmqError."""
        raise NotImplementedError


def one_line(error: CatmqError) -> str:
    fields = [f"{one.field}: {one.message}" for one in error.errors]
    return "; ".join([error.detail, *(text for text in fields if text not in error.detail)])


def _advice(error: DatabaseError) -> str:
    where = config.database
    advice = where and tls.find_remedy(error, host=where.host, ca=where.encryption.ca)
    return advice or "Is it up? Did `manage.py prepare` run?"


def aligned(table: Sequence[Sequence[str]]) -> list[str]:
    """Lines of a table whose first row is its headings."""
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    return ["  ".join(map(str.ljust, line, widths)).rstrip() for line in table]


def variable_of_node(name: str, what: str) -> str:
    """Environment variable of a node: CATMQ_NODE_<NAME>_<what>."""
    return f"CATMQ_NODE_{name.upper().replace('-', '_').replace('.', '_')}_{what}"


def password_of(name: str, username: str, what: str) -> str:
    """Return the password that the environment holds for an account of a node. Raises
    Invalid.
    """
    variable = variable_of_node(name, what)
    password = os.environ.get(variable, "")
    if username and not password:
        raise Invalid.field("password", f"set {variable} to the password of {username}")
    return password
