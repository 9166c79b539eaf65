"""The code of pages: every block runs or has a reason not to, and what it names exists."""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from catmq_client import Consumer, HttpTransport, Producer, ShareConsumer, aio
from catmq_client.contrib.django_outbox import outbox
from catmq_client.testing import FakeBroker
from tests.support import commands, page_runs
from tests.support.environment import ROOT
from tests.support.tracked import tracked_files

DOCS = ROOT / "docs"
BLOCK = re.compile(r"^( *)```(sh|bash|python|sql)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
OURS = (
    "catmq_client",
    "spark_tasks",
    "catmq_site",
    "messagestore",
    "metadata",
    "brokerapi",
    "portal",
)
SPAN = re.compile(rf"`((?:{'|'.join(OURS)})(?:\.\w+)+)(?:\(\))?`")
FILES = {"metadata.sqlite3"}  # no name of ours, though it begins like one
# Names that pages give to objects of the client.
KNOWN: dict[str, Any] = {
    "Consumer": Consumer,
    "consumer": Consumer,
    "Producer": Producer,
    "producer": Producer,
    "ShareConsumer": ShareConsumer,
    "FakeBroker": FakeBroker,
    "HttpTransport": HttpTransport,
    "outbox": outbox,
}
# Programs that a page may use without a word: of a minimal Debian, of its shell, ours, and
# of our packages.
PROGRAMS = {
    ".",
    "apt-get",
    "cat",
    "cd",
    "chgrp",
    "chmod",
    "chown",
    "cp",
    "echo",
    "export",
    "install",
    "mkdir",
    "printf",
    "seq",
    "set",
    "sort",
    "tr",
    "umask",
    "useradd",
    "wc",
}
PROGRAMS |= {"catmq", "celery", "django-admin", "manage.py", "pip", "python", "systemctl"}
PROGRAMS |= {"catmq-server", "uvicorn"}
PROGRAMS |= {"catmq-admin"}  # a script that how-to/deploy.md makes
PACKAGES = {
    **dict.fromkeys(("mariadb", "mariadb-dump", "mariadb-binlog"), "mariadb-client"),
    **dict.fromkeys(("mysql", "mysqldump", "mysqlbinlog"), "mysql-client"),
    **{name: name for name in ("curl", "git", "jq", "openssl", "sqlite3", "wget")},
    "nginx": "nginx",
    "promtool": "prometheus",
    "podman": "podman",
    "kubectl": "kubernetes-client",
    "python3": "python3-venv",
}
CALLED = re.compile(rf"`({'|'.join(KNOWN)})\.(\w+)\(")


def pages() -> list[Path]:
    every = [*DOCS.rglob("*.md"), *ROOT.glob("README*.md")]
    # they are of their day
    return sorted(one for one in every if not one.is_relative_to(DOCS / "decisions"))


def name(page: Path) -> str:
    return str(page.relative_to(DOCS)) if page.is_relative_to(DOCS) else f"../{page.name}"


def python_blocks(page: Path) -> Iterator[ast.Module]:
    for indent, kind, text in BLOCK.findall(page.read_text()):
        if kind == "python":
            yield ast.parse(re.sub(f"^{indent}", "", text, flags=re.MULTILINE))


def exists(dotted: str) -> bool:
    """Return True if a module, or what it holds, has this name.

    >>> exists("catmq_client.consumer.Consumer.poll"), exists("catmq_client.none")
    (True, False)
    """
    words = dotted.split(".")
    for end in range(len(words), 0, -1):
        try:
            found: Any = importlib.import_module(".".join(words[:end]))
        except ModuleNotFoundError:
            continue
        for word in words[end:]:
            found = getattr(found, word, None)
        return found is not None
    return False


def test_every_page_with_blocks_is_run_or_has_its_reason() -> None:
    with_blocks = {name(page) for page in pages() if BLOCK.search(page.read_text())}
    tables = [set(page_runs.COMMANDS), set(page_runs.ELSEWHERE), set(page_runs.NOT_RUN)]
    listed = set().union(*tables)
    assert sum(map(len, tables)) == len(listed), "a page is in one table"
    assert with_blocks - listed == set()
    assert {one for one in listed if not (DOCS / one).exists()} == set()
    for page, test in page_runs.ELSEWHERE.items():
        assert (
            Path(page).name.removesuffix(".md").partition(".")[0]
            in (ROOT / test).read_text()
        ), page
    files = re.findall(r"tests/[\w/]+(?:\.py)?", " ".join(page_runs.NOT_RUN.values()))
    assert [one for one in files if not (ROOT / one).exists()] == []


def test_pages_name_the_packages_of_the_programs_that_they_run() -> None:
    wrong = []
    for page in [ROOT / path for path in tracked_files("*.md")]:
        if page.is_relative_to(DOCS / "decisions"):
            continue
        text = page.read_text()
        programs = {
            program
            for _, kind, block in BLOCK.findall(text)
            for program in run_by(kind, block)
        }
        for program in programs - PROGRAMS:
            package = PACKAGES.get(program, f"(unknown package of {program})")
            if not re.search(rf"`{package}`|apt-get install [^`]*\b{package}\b", text):
                wrong.append(
                    f"{page.relative_to(ROOT)}: {program} needs the package {package}"
                )
    assert wrong == []


def run_by(kind: str, block: str) -> set[str]:
    """Return the programs that a shell block runs, without those at a path.

    >>> sorted(run_by("sh", "export A=1\\nA=2 curl -s x | sudo jq .\\nscript/server &"))
    ['curl', 'export', 'jq']
    """
    if kind not in ("sh", "bash"):
        return set()
    calls: list[list[str]] = [[]]
    for line in commands.statements(
        re.sub(r"<<'(\w+)'\n.*?\n *\1$", "", block, flags=re.M | re.S)
    ):
        for token in [*commands.words(line), ";"]:
            if token in (";", "|", "&", "&&", "||", "(", ")"):
                calls.append([])
            elif calls[-1] or not (commands.ASSIGNMENT.match(token) or token == "sudo"):
                calls[-1].append(token)
    return {call[0] for call in calls if call and "/" not in call[0]}


def bound_by_with(tree: ast.AST) -> dict[str, Any]:
    """Return the classes of catmq_client.aio by the names that `async with` gives their
    objects.
    """
    return {
        item.optional_vars.id: getattr(aio, item.context_expr.func.id)
        for node in ast.walk(tree)
        if isinstance(node, ast.AsyncWith)
        for item in node.items
        if isinstance(item.optional_vars, ast.Name)
        and isinstance(item.context_expr, ast.Call)
        and isinstance(item.context_expr.func, ast.Name)
        and item.context_expr.func.id in aio.__all__
    }


def test_what_python_blocks_import_and_call_exists() -> None:
    wrong = []
    for page in pages():
        for tree in python_blocks(page):
            objects = KNOWN | bound_by_with(tree)
            for node in ast.walk(tree):
                if isinstance(node, ast.ImportFrom) and str(node.module).startswith(OURS):
                    names = [
                        f"{node.module}.{one.name}" for one in node.names if one.name != "*"
                    ]
                    wrong += [f"{name(page)}: {one}" for one in names if not exists(one)]
                if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                    of = objects.get(node.value.id)
                    if of is not None and not hasattr(of, node.attr):
                        wrong.append(f"{name(page)}: {node.value.id}.{node.attr}")
    assert wrong == []


def test_what_pages_name_in_backquotes_exists() -> None:
    named = [(page, one) for page in pages() for one in SPAN.findall(page.read_text())]
    called = [(page, *one) for page in pages() for one in CALLED.findall(page.read_text())]
    assert len(named) > 10 and len(called) > 5
    wrong = [
        f"{name(page)}: {one}"
        for page, one in named
        if one not in FILES and not exists(one)
    ]
    wrong += [
        f"{name(page)}: {of}.{one}"
        for page, of, one in called
        if not hasattr(KNOWN[of], one)
    ]
    assert wrong == []
