"""Commands that users are shown: collected from pages and from texts in the code, and
checked by the real parsers.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import importlib.util
import io
import re
import shlex
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from django.core.management import CommandError, get_commands, load_command_class

from catmq_client import __version__
from catmq_client.cli.main import build_parser, parse_arguments
from catmq_site import program
from catmq_site.server import supervisor
from tests.support.environment import ROOT

BLOCK = re.compile(r"^ *```(\w*)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
SPAN = re.compile(r"`([^`\n]+)`")
BEGIN = (
    r"(?:catmq (?=[a-z])|(?:[\w./]*/)?catmq-server (?=[a-z])|"
    r"(?:[\w./]*python )?manage\.py (?=[a-z])|script/[a-z]+\b|"
    r"[\w./]*python (?=-m |examples/))"
)
COMMAND = re.compile(rf"^{BEGIN}")
# In a sentence a command ends with it, or where the next command begins.
COMMAND_IN_SENTENCE = re.compile(
    rf"(?<![\w/.-]){BEGIN}[ -~]*?(?=[.,;:)?\"]+(?:\s|$)|[`<>|&()]| then | or |$)",
    re.MULTILINE,
)
ASSIGNMENT = re.compile(r"[A-Z_][A-Z0-9_]*=")
ENDS = {"|", "||", "&&", "&", ";", ">", ">>", "<", "2>", "|&", "(", ")"}
# Placeholders in pages, each with a value that the parsers accept.
PLACEHOLDERS = {
    "QUEUE": "1",
    "N": "1",
    "RUN": "1",
    "REDRIVE": "1",
    "SPAN": "30s",
    "TIME": "2026-03-01T12:00",
}

PIP = re.compile(r"^(?:[\w./]*python\S* -m )?[\w./]*pip\d? install\b")
# A path or the name of our package, and its extras.
CLIENT = re.compile(
    r"(?P<target>catmq[-_]client|\S*\bclient|[^\s\[]*catmq_client-[^\s\[]+)"
    r"(?:\[(?P<extras>[^]]*)\])?"
)
EXTRAS = tomllib.loads((ROOT / "client/pyproject.toml").read_text())["project"][
    "optional-dependencies"
]
WHEEL = f"catmq_client-{__version__}-py3-none-any.whl"
# Options with which pip takes the name of a package that is on no public index.
OTHER_SOURCES = ("--find-links", "--index-url")

MISSING_ARGUMENTS = "the following arguments are required"


class ShownCommand(NamedTuple):
    """A command and where it is shown. `whole`: the text is the command alone, not part of
    a sentence.
    """

    place: str
    text: str
    whole: bool


def in_page(path: Path) -> Iterator[ShownCommand]:
    """Yield the commands of a page: the lines of its shell blocks, and texts between
    backquotes.
    """
    text = path.read_text()
    name = str(path.relative_to(ROOT))
    for kind, block in BLOCK.findall(text):
        if kind == "sh":
            for statement in statements(block):
                yield from (ShownCommand(name, part, True) for part in parts(statement))
    for span in SPAN.findall(BLOCK.sub("", text)):
        yield from (ShownCommand(name, part, True) for part in parts(span))


def statements(block: str) -> Iterator[str]:
    """Yield the lines of a shell block. Lines joined by a backslash or an open quotation
    count as a single line.

    Raises ValueError if a quotation is not closed.
    """
    statement = ""
    for line in block.replace("\\\n", " ").splitlines():
        statement += line
        try:
            words(statement)
        except ValueError:
            statement += "\n"
            continue
        yield statement
        statement = ""
    if statement:
        raise ValueError(f"a quotation without its end: {statement}")


def words(text: str) -> list[str]:
    """Return the words and operators of a shell line, without comments.

    Raises ValueError if a quotation is not closed.
    """
    lexer = shlex.shlex(text, posix=True, punctuation_chars=True)
    lexer.commenters, lexer.whitespace_split = "#", True
    return list(lexer)


def parts(text: str) -> Iterator[str]:
    """Yield the commands of ours in a shell line. Text between backquotes need not be a
    command.
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
        # Variables in front of a command are not part of it.
        while call and ASSIGNMENT.match(call[0]):
            call.pop(0)
        if COMMAND.match(" ".join(call)):
            yield shlex.join(call)
        call = []


def in_code(path: Path) -> Iterator[ShownCommand]:
    """Yield the commands in the texts of a module, without docstrings. `x1` and 1 fill in
    placeholders.
    """
    name = str(path.relative_to(ROOT))
    tree = ast.parse(path.read_text())
    skipped = {
        id(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            skipped.update(map(id, node.values))
            pieces = (
                value.value if isinstance(value, ast.Constant) else "x1"
                for value in node.values
            )
            text = "".join(map(str, pieces))
        elif (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and id(node) not in skipped
        ):
            text = node.value
        else:
            continue
        yield from in_sentences(name, text)


def in_sentences(name: str, text: str) -> Iterator[ShownCommand]:
    """Yield the commands within sentences."""
    text_with_values = re.sub(
        r"\{\{.*?\}\}|\{%.*?%\}|%\(\w+\)s|%s|\{\w*\}", "x1", text.replace("%d", "1")
    )
    yield from (
        ShownCommand(name, match[0].strip(), False)
        for match in COMMAND_IN_SENTENCE.finditer(text_with_values)
    )


def trouble(shown: ShownCommand) -> str:
    """Return the real parser's complaint about a command; '' if it accepts the command."""
    split = (
        shlex.split(shown.text) if shown.whole else re.sub("[\"']", "", shown.text).split()
    )
    words = [PLACEHOLDERS.get(word, word) for word in split if word != "…"]
    if shown.whole:
        return complaint(words)
    # A sentence may name an option without the rest.
    if any(word.startswith("--") for word in words):
        return "" if MISSING_ARGUMENTS in (message := complaint(words)) else message
    complaints = [complaint(words[:end]) for end in range(len(words), 0, -1)]
    return "" if "" in complaints else complaints[-1]


def complaint(words: Sequence[str]) -> str:
    """Return the parser's complaint about a call; '' if it is right."""
    if "manage.py" in words[:2]:
        return of_manage(words[words.index("manage.py") + 1 :])
    if words[0] == "catmq":
        return of_catmq(words[1:])
    if words[0].endswith("catmq-server"):
        return of_server(words[1:])
    return of_script(words) if words[0].startswith("script/") else of_python(words[1:])


def of_catmq(words: Sequence[str]) -> str:
    """Check a call of the command line. The bare name of a command is accepted, too."""
    command = build_parser()
    for index, word in enumerate(words):
        subparsers = next(
            (
                action
                for action in command._actions
                if isinstance(action, argparse._SubParsersAction)
            ),
            None,
        )
        if subparsers is None:
            break
        # a former name is not listed
        if word not in {choice.dest for choice in subparsers._choices_actions}:
            return f"there is no `catmq {' '.join(words[: index + 1])}`"
        command = subparsers.choices[word]
    else:
        return ""
    return said_by(lambda: parse_arguments(list(words)))


def of_manage(words: Sequence[str]) -> str:
    """Check a call of a management command, or its bare name."""
    apps = get_commands()
    if not words or words[0] not in apps:
        return f"there is no management command {' '.join(words[:1])}"
    if len(words) == 1 or "--help" in words:
        return ""
    command = load_command_class(str(apps[words[0]]), words[0])
    return said_by(
        lambda: command.create_parser("manage.py", words[0]).parse_args(list(words[1:]))
    )


def of_server(words: Sequence[str]) -> str:
    """Check a call of an installed server's program."""
    if words[:1] == ["serve"]:
        return said_by(lambda: supervisor.parse_arguments(words[1:]))
    name = program.ALIASES.get(words[0], words[0]) if words else "help"
    return of_manage([name.replace("-", "_"), *words[1:]]) if name != "help" else ""


def said_by(parse: object) -> str:
    """Return the error text of a parser; '' if it accepts the arguments."""
    output = io.StringIO()
    try:
        with contextlib.redirect_stderr(output), contextlib.redirect_stdout(output):
            parse()  # type: ignore[operator]
    except (SystemExit, CommandError) as refusal:
        return (
            ""
            if getattr(refusal, "code", 1) == 0
            else (output.getvalue() or str(refusal)).strip()
        )
    return ""


def of_script(words: Sequence[str]) -> str:
    """Check a call of a script: the file exists, and the program it runs has the options."""
    path = ROOT / words[0]
    if not path.is_file():
        return f"there is no {words[0]}"
    text = path.read_text()
    if words[0] == "script/server":  # its options, to which the program passes on
        text += Path(supervisor.__file__).read_text()
    for module, example in re.findall(r"-m \"?([\w.]+)|examples/(\w+)\.py", text):
        if module == "benchmarks.":  # the first word, or bench without it
            module_names = [word.replace("-", "_") for word in words[1:2]]
            module += next(
                (
                    name
                    for name in module_names
                    if (ROOT / f"benchmarks/{name}.py").is_file()
                    or (ROOT / f"benchmarks/{name}/__main__.py").is_file()
                ),
                "bench",
            )
        file = ROOT / (
            module.replace(".", "/") + ".py" if module else f"examples/{example}.py"
        )
        if not file.is_file():  # a package that is run
            file = file.with_suffix("") / "__main__.py"
        text += file.read_text() if file.is_file() else ""
    options = [
        word.partition("=")[0].strip("[]")
        for word in words
        # argparse gives every program --help without its name in the source.
        if word.strip("[").startswith("--") and word != "--help"
    ]
    return "".join(
        f"{words[0]} has no {name}"
        for name in options
        if f'"{name}"' not in text
        and name not in text
        # argparse adds it to each parser.
        and not (name == "--help" and "ArgumentParser(" in text)
    )


def of_python(words: Sequence[str]) -> str:
    """Check a call of a program of ours: its file or module exists."""
    if words[:1] == ["-m"] and len(words) > 1:
        return (
            "" if importlib.util.find_spec(words[1]) else f"there is no module {words[1]}"
        )
    return (
        ""
        if words and (ROOT / words[0]).is_file()
        else f"there is no {' '.join(words[:1])}"
    )


def pip_installs(path: Path) -> Iterator[ShownCommand]:
    """Yield the calls of `pip install` in a page: in all its blocks, and between backquotes."""
    text = path.read_text()
    name = str(path.relative_to(ROOT))
    lines = [line for _, block in BLOCK.findall(text) for line in block.splitlines()]
    # Blocks of Markdown that are only indented count, too.
    lines += re.findall(r"^ {4,}(.*)$", text, re.MULTILINE)
    for shown in [*lines, *SPAN.findall(BLOCK.sub("", text))]:
        for call in re.split(r"&&|\|\||;", shown):
            if PIP.match(call.strip()):
                yield ShownCommand(name, call.partition(" #")[0].strip(), True)


def pip_trouble(shown: ShownCommand) -> str:
    """Return why a call of `pip install` would not install our package; '' if it would.

    Calls that install other packages are right.
    """
    named_sources = [option for option in OTHER_SOURCES if option in shown.text]
    for word in shlex.split(shown.text):
        client = CLIENT.fullmatch(word)
        if client is None:
            continue
        extras = set((client["extras"] or "").split(",")) - {""}
        if unknown := extras - set(EXTRAS):
            return f"the client has no extra {', '.join(sorted(unknown))}"
        # zsh takes brackets for a pattern of file names.
        if client["extras"] and not re.search(rf"[\"']{re.escape(word)}[\"']", shown.text):
            return f"{word} needs quotation marks"
        target = client["target"]
        if target in ("catmq-client", "catmq_client"):
            if not named_sources:
                return f"{target} is on no index: see docs/how-to/install-the-client.md"
        elif target.endswith(".whl"):
            if not target.endswith(f"/{WHEEL}"):
                return f"script/build writes {WHEEL}"
        elif not re.fullmatch(r"\./client|\.\./catmq/client|\.\./\.\./client", target):
            return f"{target} is not the client of a checkout"
    return ""
