"""Commands that people are told to run: found in pages and texts of the code, and put to
the real parsers.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import importlib.util
import io
import re
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from django.core.management import CommandError, get_commands, load_command_class

from catmq_client.cli.main import build_parser, parse_arguments
from tests.support.environment import ROOT

BLOCK = re.compile(r"^ *```(\w*)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
SPAN = re.compile(r"`([^`\n]+)`")
BEGIN = (
    r"(?:catmq (?=[a-z])|(?:[\w./]*python )?manage\.py (?=[a-z])|script/[a-z]+\b|"
    r"[\w./]*python (?=-m |examples/))"
)
COMMAND = re.compile(rf"^{BEGIN}")
# In a sentence a command ends with it, or where the next one begins.
TOLD = re.compile(
    rf"(?<![\w/.-]){BEGIN}[ -~]*?(?=[.,;:)?\"]+(?:\s|$)|[`<>|&()]| then | or |$)",
    re.MULTILINE,
)
ASSIGNMENT = re.compile(r"[A-Z_][A-Z0-9_]*=")
ENDS = {"|", "||", "&&", "&", ";", ">", ">>", "<", "2>", "|&", "(", ")"}
# What stands for a value, and a value that the parsers take.
PLACEHOLDERS = {
    "QUEUE": "1",
    "N": "1",
    "RUN": "1",
    "REDRIVE": "1",
    "SPAN": "30s",
    "TIME": "2026-03-01T12:00",
}


LACKING = "the following arguments are required"


class Told(NamedTuple):
    """A command and where it stands; `whole`: nothing but the command, no sentence goes on
    behind it.
    """

    place: str
    text: str
    whole: bool


def in_page(path: Path) -> Iterator[Told]:
    """The commands of a page: each line of its shell blocks, and what stands between
    backquotes.
    """
    text = path.read_text()
    name = str(path.relative_to(ROOT))
    for kind, block in BLOCK.findall(text):
        if kind == "sh":
            for statement in statements(block):
                yield from (Told(name, part, True) for part in parts(statement))
    for span in SPAN.findall(BLOCK.sub("", text)):
        yield from (Told(name, part, True) for part in parts(span))


def statements(block: str) -> Iterator[str]:
    """The lines of a shell block; those that a backslash or an open quotation continues are
    one.

    Raises ValueError if a quotation has no end.
    """
    begun = ""
    for line in block.replace("\\\n", " ").splitlines():
        begun += line
        try:
            words(begun)
        except ValueError:
            begun += "\n"
            continue
        yield begun
        begun = ""
    if begun:
        raise ValueError(f"a quotation without its end: {begun}")


def words(text: str) -> list[str]:
    """The words and operators of shell, comments left out. Raises ValueError for an open
    quotation.
    """
    lexer = shlex.shlex(text, posix=True, punctuation_chars=True)
    lexer.commenters, lexer.whitespace_split = "#", True
    return list(lexer)


def parts(text: str) -> Iterator[str]:
    """The commands in shell that we know; what is between backquotes of prose may be less
    than a command.
    """
    try:
        tokens = [*words(text), ";"]
    except ValueError:
        return
    call: list[str] = []
    for token in tokens:
        if token not in ENDS:
            call.append(token)
            continue
        while call and ASSIGNMENT.match(call[0]):
            call.pop(0)
        if COMMAND.match(" ".join(call)):
            yield shlex.join(call)
        call = []


def in_code(path: Path) -> Iterator[Told]:
    """The commands in the texts of a module, docstrings left out; `x1` or 1 stands for what
    is filled in.
    """
    name = str(path.relative_to(ROOT))
    tree = ast.parse(path.read_text())
    silent = {
        id(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            silent.update(map(id, node.values))
            pieces = (
                one.value if isinstance(one, ast.Constant) else "x1" for one in node.values
            )
            text = "".join(map(str, pieces))
        elif (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and id(node) not in silent
        ):
            text = node.value
        else:
            continue
        yield from in_sentences(name, text)


def in_sentences(name: str, text: str) -> Iterator[Told]:
    """The commands in text that goes on behind them."""
    filled = re.sub(
        r"\{\{.*?\}\}|\{%.*?%\}|%\(\w+\)s|%s|\{\w*\}", "x1", text.replace("%d", "1")
    )
    yield from (Told(name, found[0].strip(), False) for found in TOLD.finditer(filled))


def trouble(told: Told) -> str:
    """Return what the real parser says against a command; "" if it takes it."""
    split = shlex.split(told.text) if told.whole else re.sub("[\"']", "", told.text).split()
    words = [PLACEHOLDERS.get(word, word) for word in split if word != "…"]
    if told.whole:
        return complaint(words)
    # a sentence may tell an option without the rest
    if any(word.startswith("--") for word in words):
        return "" if LACKING in (said := complaint(words)) else said
    tried = [complaint(words[:end]) for end in range(len(words), 0, -1)]
    return "" if "" in tried else tried[-1]


def complaint(words: Sequence[str]) -> str:
    """Return what is wrong with a call; "" if nothing is."""
    if "manage.py" in words[:2]:
        return of_manage(words[words.index("manage.py") + 1 :])
    if words[0] == "catmq":
        return of_catmq(words[1:])
    return of_script(words) if words[0].startswith("script/") else of_python(words[1:])


def of_catmq(words: Sequence[str]) -> str:
    """A call of the command line; a command's bare name is right, too, where there is one."""
    command = build_parser()
    for at, word in enumerate(words):
        below = next(
            (
                one
                for one in command._actions
                if isinstance(one, argparse._SubParsersAction)
            ),
            None,
        )
        if below is None:
            break
        # a former name is not listed
        if word not in {choice.dest for choice in below._choices_actions}:
            return f"there is no `catmq {' '.join(words[: at + 1])}`"
        command = below.choices[word]
    else:
        return ""
    return said_by(lambda: parse_arguments(list(words)))


def of_manage(words: Sequence[str]) -> str:
    """A call of a management command, or its bare name."""
    apps = get_commands()
    if not words or words[0] not in apps:
        return f"there is no management command {' '.join(words[:1])}"
    if len(words) == 1 or "--help" in words:
        return ""
    command = load_command_class(str(apps[words[0]]), words[0])
    return said_by(
        lambda: command.create_parser("manage.py", words[0]).parse_args(list(words[1:]))
    )


def said_by(parse: object) -> str:
    """Return what a parser says when it refuses."""
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
            parse()  # type: ignore[operator]
    except (SystemExit, CommandError) as refusal:
        return (
            ""
            if getattr(refusal, "code", 1) == 0
            else (said.getvalue() or str(refusal)).strip()
        )
    return ""


def of_script(words: Sequence[str]) -> str:
    """A call of a script: it is there, and what it runs knows the options."""
    path = ROOT / words[0]
    if not path.is_file():
        return f"there is no {words[0]}"
    text = path.read_text()
    for module, example in re.findall(r"-m \"?([\w.]+)|examples/(\w+)\.py", text):
        if module == "benchmarks.":  # the first word, or without one: bench
            named = [word.replace("-", "_") for word in words[1:2]]
            module += next(
                (one for one in named if (ROOT / f"benchmarks/{one}.py").is_file()), "bench"
            )
        file = ROOT / (
            module.replace(".", "/") + ".py" if module else f"examples/{example}.py"
        )
        text += file.read_text() if file.is_file() else ""
    options = [
        word.partition("=")[0].strip("[]")
        for word in words
        if word.strip("[").startswith("--")
    ]
    return "".join(
        f"{words[0]} has no {one}"
        for one in options
        if f'"{one}"' not in text and one not in text
    )


def of_python(words: Sequence[str]) -> str:
    """A program of ours: its file or module is there."""
    if words[:1] == ["-m"] and len(words) > 1:
        return (
            "" if importlib.util.find_spec(words[1]) else f"there is no module {words[1]}"
        )
    return (
        ""
        if words and (ROOT / words[0]).is_file()
        else f"there is no {' '.join(words[:1])}"
    )
