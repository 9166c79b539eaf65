"""The table of verbs: name, arguments, call of the management API and output of each
command.

The modules of `manage` and `messages` declare entries of the table; main.py makes the
parser from them.
"""

from __future__ import annotations

import argparse
import difflib
import sys
from collections.abc import Callable, Collection, Iterable, Mapping
from copy import copy
from dataclasses import dataclass
from itertools import islice
from typing import Any, NoReturn

from catmq_client.admin.api import Admin
from catmq_client.cli.arguments import whole
from catmq_client.cli.connection import Brokers, Command
from catmq_client.cli.forms import MESSAGE_FIELDS, Form, Format, Paint, is_table, paint
from catmq_client.cli.output import Columns, facts, note, print_row, print_rows, show
from catmq_client.errors import OptionError

# A call of the management API with the arguments of a command.
Call = Callable[[Admin, argparse.Namespace], Any]
# Writes an answer as a page for people, in colours.
Page = Callable[[Any, Paint], str]


class Argument:
    """An argument as the help shows it: "--limit N", a flag as "--all", or "NAME"; `form`
    is argparse's.

    `old`: a former name of an option; it works, and no help lists it. `old_type`: its type,
    if that differs.
    """

    def __init__(
        self, words: str, text: str | None = None, *, old: str = "", **form: Any
    ) -> None:
        self.flag, _, metavar = words.partition(" ")
        self.old, self.old_type = old, form.pop("old_type", None)
        self.dest: str = form.get("dest") or self.flag.lstrip("-").replace("-", "_").lower()
        self.form = {"help": text, **form}
        if not self.flag.startswith("-"):
            self.form.pop("dest", None)
        elif not (metavar or "choices" in form or "action" in form):
            self.form["action"] = "store_true"
        if metavar:
            self.form["metavar"] = metavar

    def add(self, parser: argparse._ActionsContainer) -> None:
        if self.flag.startswith("-"):
            parser.add_argument(self.flag, **self.form)
            if self.old:
                former = {
                    "help": argparse.SUPPRESS,
                    "dest": self.dest,
                    "default": argparse.SUPPRESS,
                }
                former |= {"type": self.old_type} if self.old_type else {}
                parser.add_argument(self.old, **{**self.form, **former})
        else:
            parser.add_argument(self.dest, metavar=self.flag, **self.form)

    def optional(self) -> Argument:
        """Return the same argument, absent from the parsed ones unless it is given."""
        same = copy(self)
        same.form = {**self.form, "default": argparse.SUPPRESS}
        return same


class OneOf(Argument):
    """Arguments of which exactly one must be given."""

    def __init__(self, *choices: Argument) -> None:
        super().__init__("NONE")
        self.choices = choices

    def add(self, parser: argparse._ActionsContainer) -> None:
        group = parser.add_mutually_exclusive_group(required=True)
        for choice in self.choices:
            choice.add(group)


Arguments = tuple[Argument, ...]


@dataclass(frozen=True)
class Verb:
    """A command that does something. `old`: a former name; it works, and no help lists it."""

    name: str
    help: str
    arguments: Arguments
    run: Command
    old: str = ""

    def add(self, parsers: Any, common: argparse.ArgumentParser) -> None:
        made = add_parser(parsers, self, parents=[common])
        for argument in self.arguments:
            argument.add(made)
        made.set_defaults(command=self.run, parser=made)


@dataclass(frozen=True)
class Noun:
    """A group of verbs. `old`: a former name, as of a verb."""

    name: str
    help: str
    verbs: tuple[Verb, ...]
    old: str = ""

    def add(self, parsers: Any, common: argparse.ArgumentParser) -> None:
        below = add_parser(parsers, self).add_subparsers(metavar="VERB", required=True)
        for verb in self.verbs:
            verb.add(below, common)


def add_parser(parsers: Any, entry: Verb | Noun, **form: Any) -> argparse.ArgumentParser:
    made: argparse.ArgumentParser = parsers.add_parser(entry.name, help=entry.help, **form)
    if entry.old:
        parsers.choices[entry.old] = made
    return made


class Parser(argparse.ArgumentParser):
    """A parser that answers a wrong word with those that help lists, and with the one that
    was meant.
    """

    given: Collection[str] = ()

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse the arguments; they are kept for error()."""
        self.given = args or ()
        return super().parse_known_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        """End the program; what is missing may have been given by a wrong name."""
        known = flags(self)
        options = [word.partition("=")[0] for word in self.given if word.startswith("--")]
        wrong = [
            f"{word} is unknown{close}"
            for word in options
            if word not in known and (close := meant(word, known))
        ]
        missing = message.startswith("the following arguments are required")
        super().error(f"{message} ({', '.join(wrong)})" if missing and wrong else message)

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is None or isinstance(value, Format) or value in action.choices:
            return
        words = [str(choice) for choice in action.choices]
        if isinstance(action, argparse._SubParsersAction):
            words = [listed.dest for listed in action._choices_actions]
        form = ", or a FORMAT in braces" if str(action.metavar).endswith("FORMAT") else ""
        told = (
            f"invalid choice: {value!r} (choose from "
            f"{', '.join(words)}{form}){meant(str(value), words)}"
        )
        raise argparse.ArgumentError(action, told)


def flags(command: argparse.ArgumentParser) -> list[str]:
    """Return the options that the help of a command lists."""
    shown = (action for action in command._actions if action.help != argparse.SUPPRESS)
    return [flag for action in shown for flag in action.option_strings]


def meant(text: str, words: Iterable[str]) -> str:
    """Return the question for the word that was meant, '' if none is close.

    >>> meant("tabel", ["table", "json"]), meant("x", ["table"])
    ('; did you mean table?', '')
    """
    close = difflib.get_close_matches(text, list(words), n=1)
    return f"; did you mean {close[0]}?" if close else ""


class Output(Argument):
    """`--output` of a command: `terminal` is the default on one, the first of `forms`
    elsewhere.

    `known`: the fields that a FORMAT may have, if they are known before there is a row.
    """

    def __init__(
        self,
        *forms: str,
        known: Collection[str] = (),
        example: str = "{name} {state}",
        terminal: str = "pretty",
    ) -> None:
        choices = list(dict.fromkeys(["pretty", "table", "json", *forms]))
        self._defaults = {"piped": forms[0], "on_terminal": terminal}
        told = (
            forms[0]
            if terminal == forms[0]
            else f"{terminal} on a terminal, else {forms[0]}"
        )
        super().__init__(
            f"--output {'|'.join(choices)}|FORMAT",
            f"format (default {told}); FORMAT: fields of the JSON, such as '{example}'",
            choices=choices,
            type=lambda text: Format(text, known) if "{" in text else text,
        )

    def add(self, parser: argparse._ActionsContainer) -> None:
        super().add(parser)
        parser.set_defaults(**self._defaults)


def with_form(args: argparse.Namespace) -> argparse.Namespace:
    """Return the arguments with the form of output that was not given."""
    if getattr(args, "piped", "") and args.output is None:
        args.output = args.on_terminal if sys.stdout.isatty() else args.piped
    return args


NAME, GROUP, TOPIC = Argument("NAME"), Argument("GROUP"), Argument("TOPIC")
YES = Argument("--yes", "delete without confirmation; required without a terminal")
DRY_RUN = Argument("--dry-run", "show the changes without making them")
QUEUES = Argument(
    "--queue QUEUE", "only this queue (repeatable)", type=whole(1), action="append"
)


def limit(
    default: int, most: int | None = None, *, what: str = "rows", old: str = ""
) -> Argument:
    text = f"maximum {what} (default {default})"
    return Argument("--limit N", text, type=whole(1, most), default=default, old=old)


def search(plural: str) -> Argument:
    return Argument("--search TEXT", f"only {plural} whose name contains TEXT")


TABLE = Output("table")
# a sentence says on standard error what was done
CHANGED = Output("none", example="{name}", terminal="none")
MESSAGES = Output("json", "body", known=MESSAGE_FIELDS, example="{key} {body}")


def listing(
    name: str, text: str, arguments: Arguments, call: Call, *, columns: Columns
) -> Verb:
    """A verb that prints the rows of a call, at most `--limit`."""

    def run(args: argparse.Namespace, brokers: Brokers) -> int:
        rows = islice(call(brokers.admin(), args), getattr(args, "limit", None))
        print_rows(rows, columns, args.output)
        return 0

    return Verb(name, text, (*arguments, TABLE), run)


def detail(name: str, text: str, arguments: Arguments, call: Call, *, page: Page) -> Verb:
    """A verb that prints the answer of a call: as `page` writes it, or as a JSON object or
    FORMAT.
    """

    def run(args: argparse.Namespace, brokers: Brokers) -> int:
        answer = call(brokers.admin(), args)
        if is_table(args.output):
            show(page(answer, paint(args.output, sys.stdout)))
        else:
            print_row(answer, args.output)
        return 0

    return Verb(name, text, (*arguments, TABLE), run)


def action(
    name: str,
    text: str,
    arguments: Arguments,
    call: Call,
    *,
    done: str,
    asks: str = "",
    old: str = "",
) -> Verb:
    """A verb that changes something and notes `done`, filled in from the arguments and the
    `answer`.

    `asks`: what is deleted, for a verb that must be confirmed with the value of its last
    argument.
    """

    def run(args: argparse.Namespace, brokers: Brokers) -> int:
        told = vars(args)
        if asks and not confirmed(
            asks.format(**told), told[arguments[-1].dest], yes=args.yes
        ):
            return 1
        answer = call(brokers.admin(), args)
        note(done.format(**told, answer=answer))
        named = {
            one.dest: told[one.dest] for one in arguments if not one.flag.startswith("-")
        }
        show_row(answer if isinstance(answer, Mapping) else named, args.output)
        return 0

    return Verb(name, text, (*arguments, *((YES,) if asks else ()), CHANGED), run, old)


def show_row(row: Mapping[str, Any], form: Form, body: bytes | None = None) -> None:
    """Show one thing as names and values, as JSON or in a FORMAT, or not at all.

    `body` is that of a message, for a FORMAT.
    """
    if is_table(form):
        shown = {
            name.replace("_", " "): name
            for name, value in row.items()
            if not isinstance(value, list)
        }
        show(facts(row, shown, paint(form, sys.stdout)))
    elif form != "none":
        print_row(row, form, body)


# Changes settings: the management API, the arguments, the settings that were given.
Change = Callable[[Admin, argparse.Namespace, dict[str, Any]], object]


def settings(
    text: str,
    named: Arguments,
    options: Arguments,
    change: Change,
    *,
    label: str,
    flags: Arguments = (),
) -> Verb:
    """The verb `set`: it changes the options that were given and notes them behind `label`.

    A `change` that returns False has changed nothing. `flags` are no settings.
    """

    def run(args: argparse.Namespace, brokers: Brokers) -> int:
        given = given_by(args, options)
        if not given:
            raise OptionError(
                f"nothing to set: give {', '.join(option.flag for option in options)}"
            )
        changed = change(brokers.admin(), args, given)
        if changed is not False:
            note(f"{label.format(**vars(args))}: {assignments(given)}")
        if isinstance(changed, Mapping):
            show_row(changed, args.output)
        return 0

    return Verb("set", text, (*named, *options, *flags, CHANGED), run)


def given_by(args: argparse.Namespace, options: Arguments) -> dict[str, Any]:
    """Return the values of optional arguments that were given, by name."""
    return {
        option.dest: getattr(args, option.dest)
        for option in options
        if hasattr(args, option.dest)
    }


def assignments(given: Mapping[str, Any]) -> str:
    """Return settings as text.

    >>> assignments({"tags": "new", "threads": None})
    "tags='new', threads=none"
    """
    return ", ".join(
        f"{name}={'none' if value is None else repr(value)}"
        for name, value in given.items()
    )


def confirmed(what: str, name: str, *, yes: bool) -> bool:
    """Return True if to delete: a person at a terminal types the name again, a script says
    --yes.
    """
    if yes:
        return True
    if not sys.stdin.isatty():
        note(
            "catmq: nothing deleted: no terminal for a confirmation; give --yes to delete "
            f"{what} {name}"
        )
        return False
    sys.stderr.write(f"Delete {what} {name}? Type its name: ")
    sys.stderr.flush()
    if sys.stdin.readline().strip() == name:
        return True
    note("catmq: nothing deleted: the name does not match")
    return False
