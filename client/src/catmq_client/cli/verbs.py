"""The table of commands: name, arguments, call of the management API, output.

The modules of `manage` and `messages` declare the entries; main.py builds the parser from
them.
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
from catmq_client.cli.arguments import whole_number
from catmq_client.cli.connection import Brokers, Command
from catmq_client.cli.forms import MESSAGE_FIELDS, Form, Format, Paint, is_table, paint
from catmq_client.cli.output import Columns, format_facts, note, print_row, print_rows, show
from catmq_client.errors import OptionError

# A call of the management API with the arguments of a command.
Call = Callable[[Admin, argparse.Namespace], Any]
# Formats an answer as a page for people, in colours.
Page = Callable[[Any, Paint], str]


class Argument:
    """An argument as the help shows it: "--limit N", a flag as "--all", or "NAME".

    `keywords` are passed to argparse. `old` is a former name of an option; it still works,
    but help does not list it. `old_type` is the type of the former option, if it differs.
    """

    def __init__(
        self, usage: str, text: str | None = None, *, old: str = "", **keywords: Any
    ) -> None:
        flag, _, metavar = usage.partition(" ")
        self.flag: str = flag
        self.old: str = old
        self.old_type: Any = keywords.pop("old_type", None)
        self.dest: str = (
            keywords.get("dest") or self.flag.lstrip("-").replace("-", "_").lower()
        )
        self.keywords: dict[str, Any] = {"help": text, **keywords}
        if not self.flag.startswith("-"):
            self.keywords.pop("dest", None)
        elif not (metavar or "choices" in keywords or "action" in keywords):
            self.keywords["action"] = "store_true"
        if metavar:
            self.keywords["metavar"] = metavar

    def add(self, parser: argparse._ActionsContainer) -> None:
        """Add the argument to a parser, with its former name."""
        if self.flag.startswith("-"):
            parser.add_argument(self.flag, **self.keywords)
            if self.old:
                # Without a default of its own the former option does not overwrite the
                # value of the present option.
                old_keywords = {
                    "help": argparse.SUPPRESS,
                    "dest": self.dest,
                    "default": argparse.SUPPRESS,
                }
                old_keywords |= {"type": self.old_type} if self.old_type else {}
                parser.add_argument(self.old, **{**self.keywords, **old_keywords})
        else:
            parser.add_argument(self.dest, metavar=self.flag, **self.keywords)

    def optional(self) -> Argument:
        """Return the same argument without a default: absent from the namespace unless set."""
        argument = copy(self)
        argument.keywords = {**self.keywords, "default": argparse.SUPPRESS}
        return argument


class OneOf(Argument):
    """Alternative arguments: exactly 1 of them is required."""

    def __init__(self, *choices: Argument) -> None:
        super().__init__("NONE")
        self.choices = choices

    def add(self, parser: argparse._ActionsContainer) -> None:
        group = parser.add_mutually_exclusive_group(required=True)
        for argument in self.choices:
            argument.add(group)


Arguments = tuple[Argument, ...]


@dataclass(frozen=True)
class Verb:
    """A command that does something.

    `old` is a former name. It still works, but help does not list it.
    """

    name: str
    help: str
    arguments: Arguments
    run: Command
    old: str = ""

    def add(self, parsers: Any, common: argparse.ArgumentParser) -> None:
        parser = add_parser(parsers, self, parents=[common])
        for argument in self.arguments:
            argument.add(parser)
        # With this parser later errors show the usage of the command.
        parser.set_defaults(command=self.run, parser=parser)


@dataclass(frozen=True)
class Noun:
    """A group of verbs. `old` is a former name, as of a verb."""

    name: str
    help: str
    verbs: tuple[Verb, ...]
    old: str = ""

    def add(self, parsers: Any, common: argparse.ArgumentParser) -> None:
        subparsers = add_parser(parsers, self).add_subparsers(metavar="VERB", required=True)
        for verb in self.verbs:
            verb.add(subparsers, common)


def add_parser(
    parsers: Any, entry: Verb | Noun, **keywords: Any
) -> argparse.ArgumentParser:
    """Add the parser of an entry, under its present and its former name."""
    parser: argparse.ArgumentParser = parsers.add_parser(
        entry.name, help=entry.help, **keywords
    )
    # Not the argument `aliases` of argparse, since help would list the former name.
    if entry.old:
        parsers.choices[entry.old] = parser
    return parser


class Parser(argparse.ArgumentParser):
    """A parser whose errors list the visible choices and suggest the nearest choice."""

    # The arguments that are parsed, for error().
    arguments: Collection[str] = ()

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse the arguments, and keep them for error()."""
        self.arguments = args or ()
        return super().parse_known_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        """End the program with an error.

        If a required option is missing, the text also names misspelt options.
        """
        valid_options = listed_options(self)
        options = [
            option.partition("=")[0] for option in self.arguments if option.startswith("--")
        ]
        misspelt = [
            f"{option} is unknown{hint}"
            for option in options
            if option not in valid_options and (hint := suggest(option, valid_options))
        ]
        missing = message.startswith("the following arguments are required")
        super().error(
            f"{message} ({', '.join(misspelt)})" if missing and misspelt else message
        )

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Check a choice as argparse does, but list only visible commands, and suggest the
        nearest.
        """
        if action.choices is None or isinstance(value, Format) or value in action.choices:
            return
        # A FORMAT is valid for --output, but is none of its choices.
        choices = [str(choice) for choice in action.choices]
        if isinstance(action, argparse._SubParsersAction):
            choices = [entry.dest for entry in action._choices_actions]
        format_hint = (
            ", or a FORMAT in braces" if str(action.metavar).endswith("FORMAT") else ""
        )
        message = (
            f"invalid choice: {value!r} (choose from "
            f"{', '.join(choices)}{format_hint}){suggest(str(value), choices)}"
        )
        raise argparse.ArgumentError(action, message)


def listed_options(command: argparse.ArgumentParser) -> list[str]:
    """Return the options that the help of a command lists."""
    visible = (action for action in command._actions if action.help != argparse.SUPPRESS)
    return [flag for action in visible for flag in action.option_strings]


def suggest(text: str, words: Iterable[str]) -> str:
    """Return a question that names the word closest to a text, '' if none is close.

    >>> suggest("tabel", ["table", "json"]), suggest("x", ["table"])
    ('; did you mean table?', '')
    """
    matches = difflib.get_close_matches(text, list(words), n=1)
    return f"; did you mean {matches[0]}?" if matches else ""


class Output(Argument):
    """The option `--output` of a command.

    Its default is `terminal` on a terminal, and the first of `forms` elsewhere. `fields`
    are the fields that a FORMAT may name, if they are fixed before the first row.
    """

    def __init__(
        self,
        *forms: str,
        fields: Collection[str] = (),
        example: str = "{name} {state}",
        terminal: str = "pretty",
    ) -> None:
        # dict.fromkeys() removes repeats and keeps the order.
        choices = list(dict.fromkeys(["pretty", "table", "json", *forms]))
        self._defaults = {"piped": forms[0], "on_terminal": terminal}
        default = (
            forms[0]
            if terminal == forms[0]
            else f"{terminal} on a terminal, else {forms[0]}"
        )
        super().__init__(
            f"--output {'|'.join(choices)}|FORMAT",
            f"format (default {default}); FORMAT: fields of the JSON, such as '{example}'",
            choices=choices,
            type=lambda text: Format(text, fields) if "{" in text else text,
        )

    def add(self, parser: argparse._ActionsContainer) -> None:
        super().add(parser)
        # The choice depends on the terminal and is made by with_output_form(): the parser is
        # built once, while standard output may change between commands of a process.
        parser.set_defaults(**self._defaults)


def with_output_form(args: argparse.Namespace) -> argparse.Namespace:
    """Return the arguments with the default form of output if none was chosen."""
    if getattr(args, "piped", "") and args.output is None:
        args.output = args.on_terminal if sys.stdout.isatty() else args.piped
    return args


NAME, GROUP, TOPIC = Argument("NAME"), Argument("GROUP"), Argument("TOPIC")
YES = Argument("--yes", "delete without confirmation; required without a terminal")
DRY_RUN = Argument("--dry-run", "show the changes without making them")
QUEUES = Argument(
    "--queue QUEUE", "only this queue (repeatable)", type=whole_number(1), action="append"
)


def limit(
    default: int, maximum: int | None = None, *, noun: str = "rows", old: str = ""
) -> Argument:
    text = f"maximum {noun} (default {default})"
    return Argument(
        "--limit N", text, type=whole_number(1, maximum), default=default, old=old
    )


def search(plural: str) -> Argument:
    return Argument("--search TEXT", f"only {plural} whose name contains TEXT")


TABLE = Output("table")
# Commands that change something print nothing by default. A note on standard error reports
# the change.
CHANGED = Output("none", example="{name}", terminal="none")
MESSAGES = Output("json", "body", fields=MESSAGE_FIELDS, example="{key} {body}")


def listing(
    name: str, text: str, arguments: Arguments, call: Call, *, columns: Columns
) -> Verb:
    """Return a verb that prints the rows of a call, at most `--limit`."""

    def run(args: argparse.Namespace, brokers: Brokers) -> int:
        # Rows are fetched page by page, so a small limit saves requests.
        rows = islice(call(brokers.admin(), args), getattr(args, "limit", None))
        print_rows(rows, columns, args.output)
        return 0

    return Verb(name, text, (*arguments, TABLE), run)


def detail(name: str, text: str, arguments: Arguments, call: Call, *, page: Page) -> Verb:
    """Return a verb that prints the answer of a call.

    It is formatted by `page` for people, as a JSON object or in a FORMAT.
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
    """Return a verb that changes something and notes `done`.

    `done` is a template of the arguments and the `answer`. `asks` is a template that names
    the deleted object, for a verb that must be confirmed with the value of its last
    argument.
    """

    def run(args: argparse.Namespace, brokers: Brokers) -> int:
        values = vars(args)
        if asks and not confirm_deletion(
            asks.format(**values), values[arguments[-1].dest], yes=args.yes
        ):
            return 1
        answer = call(brokers.admin(), args)
        note(done.format(**values, answer=answer))
        named_values = {
            argument.dest: values[argument.dest]
            for argument in arguments
            if not argument.flag.startswith("-")
        }
        show_row(answer if isinstance(answer, Mapping) else named_values, args.output)
        return 0

    return Verb(name, text, (*arguments, *((YES,) if asks else ()), CHANGED), run, old)


def show_row(row: Mapping[str, Any], form: Form, body: bytes | None = None) -> None:
    """Print an object as names and values, as JSON or in a FORMAT, or not at all.

    `body` is the body of a message, for a FORMAT.
    """
    if is_table(form):
        columns = {
            name.replace("_", " "): name
            for name, value in row.items()
            if not isinstance(value, list)
        }
        show(format_facts(row, columns, paint(form, sys.stdout)))
    elif form != "none":
        print_row(row, form, body)


# Changes settings: called with the management API, the arguments and the changed settings.
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
    """Return the verb `set`, which changes the settings whose options are present.

    It notes them after `label`. A `change` that returns False has changed nothing. `flags`
    are options that are no settings.
    """

    def run(args: argparse.Namespace, brokers: Brokers) -> int:
        changes = present_options(args, options)
        # An empty change would succeed without any effect.
        if not changes:
            raise OptionError(
                f"nothing to set: give {', '.join(option.flag for option in options)}"
            )
        answer = change(brokers.admin(), args, changes)
        if answer is not False:
            note(f"{label.format(**vars(args))}: {format_assignments(changes)}")
        if isinstance(answer, Mapping):
            show_row(answer, args.output)
        return 0

    return Verb("set", text, (*named, *options, *flags, CHANGED), run)


def present_options(args: argparse.Namespace, options: Arguments) -> dict[str, Any]:
    """Return the values of the options that are present, by name."""
    return {
        option.dest: getattr(args, option.dest)
        for option in options
        if hasattr(args, option.dest)
    }


def format_assignments(values: Mapping[str, Any]) -> str:
    """Return settings as text.

    >>> format_assignments({"tags": "new", "threads": None})
    "tags='new', threads=none"
    """
    return ", ".join(
        f"{name}={'none' if value is None else repr(value)}"
        for name, value in values.items()
    )


def confirm_deletion(kind: str, name: str, *, yes: bool) -> bool:
    """Return True if the deletion is confirmed: with `--yes`, or by typing the name again."""
    if yes:
        return True
    if not sys.stdin.isatty():
        note(
            "catmq: nothing deleted: no terminal for a confirmation; give --yes to delete "
            f"{kind} {name}"
        )
        return False
    # The prompt goes to standard error, since standard output has results only.
    sys.stderr.write(f"Delete {kind} {name}? Type its name: ")
    sys.stderr.flush()
    if sys.stdin.readline().strip() == name:
        return True
    note("catmq: nothing deleted: the name does not match")
    return False
