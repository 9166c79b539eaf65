"""docs/reference/command-line.md is what argparse knows.

To write it anew: PYTHONPATH=client/src python tests/unit/test_cli_reference.py
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from pathlib import Path

from catmq_client.cli.main import build_parser, parse_arguments

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "command-line.md"
MARK = "<!-- from here on written by tests/unit/test_cli_reference.py -->\n"
FORMER = {
    "group stop g --topic t": "group pause g --topic t",
    "group start g --queue 7": "group resume g --queue 7",
    "broker out b": "broker drain b",
    "broker in b": "broker enable b",
    "limit topic t --none": "quota topic t --none",
    "limit key k --bytes 1": "quota key k --bytes 1",
    "dead list g": "dlq list g",
    "dead summary g": "dlq summary g",
    "dead show g 1": "dlq show g 1",
    "dead redrive g --all": "dlq redrive g --all",
    "dead redrives g": "dlq redrives g",
    "dead stop g 1": "dlq stop g 1",
    "dead drop g --all --yes": "dlq drop g --all --yes",
}
FORMER_OPTIONS = {
    "consume t --group g --max 3": "consume t --group g --limit 3",
    "consume t --group g --session-timeout-ms 5000": "consume t --group g --session-timeout 5s",
    "peek t --max 3": "peek t --limit 3",
    "find t --key k --max 3": "find t --key k --limit 3",
    "offsets history g --max 3": "offsets history g --limit 3",
    "offsets reset g --to latest --stop": "offsets reset g --to latest --pause",
    "group set g --session-timeout-ms 5000": "group set g --session-timeout 5s",
    "topic shrink t --count 2": "topic shrink t --queues 2",
}
# What these take depends on what the command does.
SEVERAL_KINDS = {
    "--from": ["POSITION", "TIME", "earliest|latest"],
    "--to": ["POSITION", "TIME", "group|topic"],
    "--mode": ["clustering|broadcasting", "clustering|broadcasting|share"],
    "--topic": ["PATTERN", "TOPIC"],
    "--header": ["NAME=VALUE", "NAME=VALUE[,VALUE]"],
    "--output": [
        "pretty|table|json|FORMAT",
        "pretty|table|json|body|FORMAT",
        "pretty|table|json|none|FORMAT",
    ],
}
COMMON = ("--help", "--url", "--api-key", "--ca-file")


def subcommands(command: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """The commands below one, by name."""
    for action in command._actions:
        if isinstance(action, argparse._SubParsersAction):
            return dict(action.choices)
    return {}


def help_of(command: argparse.ArgumentParser) -> dict[str, str]:
    """What the list of commands says about each, by name."""
    for action in command._actions:
        if isinstance(action, argparse._SubParsersAction):
            return {choice.dest: choice.help or "" for choice in action._choices_actions}
    return {}


def leaves(
    command: argparse.ArgumentParser, text: str = ""
) -> Iterator[tuple[argparse.ArgumentParser, str]]:
    """Every command that does something and is not a former name, with its help."""
    below = subcommands(command)
    if not below:
        yield command, text
    for name, help_text in help_of(command).items():
        yield from leaves(below[name], help_text)


def own(command: argparse.ArgumentParser) -> list[argparse.Action]:
    """A command's arguments without those that all have, and without former names."""
    return [
        action
        for action in command._actions
        if not set(action.option_strings) & set(COMMON) and action.help != argparse.SUPPRESS
    ]


def value(action: argparse.Action) -> str:
    """How an argument's value is written."""
    if action.choices and not action.metavar:
        return "|".join(map(str, action.choices))
    return str(action.metavar or action.dest.upper())


def value_words(action: argparse.Action) -> list[str]:
    """The value behind an option; none behind a flag."""
    return [] if action.nargs == 0 else [value(action)]


def usage(command: argparse.ArgumentParser) -> str:
    """The call on one line."""
    words = [command.prog]
    for action in own(command):
        word = value(action)
        if action.option_strings:
            word = action.option_strings[0] + ("" if action.nargs == 0 else f" {word}")
        optional = action.nargs == "?" if not action.option_strings else not action.required
        words.append(f"[{word}]" if optional else word)
    return " ".join(words)


def section(command: argparse.ArgumentParser, text: str) -> str:
    """One command of the page."""
    lines = [
        f"## {command.prog}\n",
        text[:1].upper() + text[1:] + ".\n",
        f"```\n{usage(command)}\n```\n",
    ]
    told = [
        f"* `{' '.join([*action.option_strings[:1], *value_words(action)])}`: {action.help}"
        for action in own(command)
        if action.help
    ]
    return "\n".join([*lines, *([*told, ""] if told else [])])


def written() -> str:
    """The part of the page that follows from argparse."""
    return "\n".join(section(command, text) for command, text in leaves(build_parser()))


def test_the_page_says_what_the_commands_accept() -> None:
    assert PAGE.read_text().partition(MARK)[2] == "\n" + written(), __doc__


def test_every_command_and_argument_says_what_it_is_for() -> None:
    for command, text in leaves(build_parser()):
        assert text, command.prog
        for action in own(command):
            assert action.help or re.fullmatch("NAME|GROUP|TOPIC", value(action)), (
                command.prog,
                action.dest,
            )


def test_former_names_work_and_no_help_lists_them() -> None:
    listed = {command.prog for command, _ in leaves(build_parser())}
    for old, new in FORMER.items():
        before, now = vars(parse_arguments(old.split())), vars(parse_arguments(new.split()))
        assert before.pop("command").__qualname__ == now.pop("command").__qualname__
        assert before.pop("parser") is now.pop("parser")
        assert before == now
        assert f"catmq {' '.join(new.split()[:2])}" in listed
        assert f"catmq {' '.join(old.split()[:2])}" not in listed


def test_former_options_work() -> None:
    for old, new in FORMER_OPTIONS.items():
        before, now = vars(parse_arguments(old.split())), vars(parse_arguments(new.split()))
        assert before == now


def test_every_command_has_output_but_those_that_print_a_text_of_their_own() -> None:
    every = [command for command, _ in leaves(build_parser())]
    without = [
        command.prog
        for command in every
        if "--output" not in command._option_string_actions
    ]
    assert without == ["catmq topic sql", "catmq export", "catmq doctor"]


def test_an_option_takes_the_same_kind_of_value_in_all_commands() -> None:
    kinds: dict[str, set[str]] = {}
    for command, _ in leaves(build_parser()):
        for action in own(command):
            for flag in action.option_strings:
                kinds.setdefault(flag, set()).add(" ".join(value_words(action)))
    told = {flag: sorted(found) for flag, found in kinds.items() if len(found) > 1}
    assert told == SEVERAL_KINDS


if __name__ == "__main__":
    PAGE.write_text(PAGE.read_text().partition(MARK)[0] + MARK + "\n" + written())
