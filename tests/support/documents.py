"""Run the shell and Python blocks of a page in a fresh copy of the project."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.support.environment import ROOT
from tests.support.server import clean_environment, first_line
from tests.support.tracked import tracked_files

BLOCK = re.compile(
    r"^(?P<indent> *)```(?P<kind>sh|python)\n(?P<text>.*?)^ *```$", re.MULTILINE | re.DOTALL
)
SERVER = re.compile(r"^script/server\b(?!.*--help)")
# Commands that a test cannot run: the gate, which runs this test, and slow programs.
LEFT_OUT = re.compile(r"^(script/(test|bench|chaos|mariadb)|git clone|cd )\b")
# Commands that run until they are stopped get a limit.
ENDLESS = re.compile(
    r"^(catmq consume (?!.*(--limit|--idle-timeout)).*?)(?= [|>]|$)", re.MULTILINE
)
WORKER = re.compile(r"^(?=python examples/worker\.py)", re.MULTILINE)
LIMIT_S = 240
# the first line of a block that is the text of a file
FILE = re.compile(r"# ([\w./]+\.py)\b")


class Block(str):
    """The text of a block. `kind` is sh or python, `line` the line of the page where it
    begins.
    """

    kind: str
    line: int


def blocks(page: str) -> list[Block]:
    """Return the shell and Python blocks of a page in order, without the indentation of a
    list.
    """
    page_blocks = []
    for match in BLOCK.finditer(page):
        block = Block(re.sub(f"^{match['indent']}", "", match["text"], flags=re.MULTILINE))
        block.kind, block.line = match["kind"], page.count("\n", 0, match.start()) + 2
        page_blocks.append(block)
    return page_blocks


def starts_a_server(block: Block) -> bool:
    """Return True if a block is the single command that keeps running in a terminal of its
    own.
    """
    return (
        block.kind == "sh"
        and bool(SERVER.match(block.strip()))
        and "\n" not in block.strip()
    )


def script(page: str, *, port: int) -> str:
    """Return all blocks, except those that start the server, as a single shell script.

    Port 8000 becomes `port`, endless commands get a limit, and each block prints its line
    first.
    """
    parts = ["set -eo pipefail"]
    for block in blocks(page):
        if starts_a_server(block):
            continue
        parts.append(f"echo '== line {block.line}' >&2")
        parts.append(runnable(block, port=port) if block.kind == "sh" else python(block))
    return "\n".join(parts) + "\n"


def runnable(block: str, *, port: int) -> str:
    """Return a shell block as a test can run it."""
    lines = "\n".join(
        line for line in block.splitlines() if not LEFT_OUT.match(line.strip())
    )
    limited = ENDLESS.sub(
        r"\1 --limit 50 --idle-timeout 3", WORKER.sub("timeout --preserve-status 5 ", lines)
    )
    return limited.replace("127.0.0.1:8000", f"127.0.0.1:{port}")


def python(block: str) -> str:
    """Return a Python block as a shell command.

    The command runs the block, or appends it to the file that its first line names.
    """
    file = FILE.match(block)
    if file:
        return f"cat >> {file[1]} <<'END OF BLOCK'\n{block}END OF BLOCK"
    return f"python - <<'END OF BLOCK'\n{block}END OF BLOCK"


def checkout(directory: Path) -> Path:
    """Copy the tracked files, and create a virtualenv that sees the packages of the test
    session.
    """
    copy = directory / "catmq"
    for file in tracked_files():
        (copy / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / file, copy / file, follow_symlinks=False)
    subprocess.run(
        [sys.executable, "-m", "venv", "--without-pip", copy / ".venv"], check=True
    )
    (library,) = (copy / ".venv/lib").glob("python*/site-packages")
    session_packages = next(path for path in sys.path if path.endswith("site-packages"))
    # A plain line adds a directory to sys.path, but not the editable client that is
    # installed in it.
    (library / "outer.pth").write_text(f"{session_packages}\n")
    pip = copy / ".venv/bin/pip"
    pip.write_text(
        '#!/bin/sh\nexec "$(dirname "$0")/python" -m pip --disable-pip-version-check "$@"\n'
    )
    pip.chmod(0o755)
    return copy


def run(copy: Path, text: str) -> str:
    """Run a script in a checkout and return its output. Fails with the output if the script
    fails.
    """
    environ = {
        name: value for name, value in clean_environment().items() if name != "PYTHONPATH"
    }
    environ["PATH"] = os.pathsep.join(
        part for part in environ["PATH"].split(os.pathsep) if ".venv" not in part
    )
    return typed(text, directory=copy, environ=environ)


def typed(block: str, *, directory: Path, environ: Mapping[str, str], code: int = 0) -> str:
    """Return the output of a block typed in a terminal. Fails unless it ends with exit code
    `code`.
    """
    process = subprocess.run(
        ["bash", "-eo", "pipefail", "-c", block],
        cwd=directory,
        env=dict(environ),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        timeout=LIMIT_S,
        check=False,
    )
    assert process.returncode == code, (
        f"exit code {process.returncode}\n{process.stdout[-4000:]}"
    )
    return process.stdout


@contextmanager
def serving(copy: Path, block: str) -> Iterator[str]:
    """Run a server that a block starts in a terminal, and yield its URL."""
    process = subprocess.Popen(
        ["bash", "-euc", block], cwd=copy, env=clean_environment(), stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )  # fmt: skip
    try:
        ready = re.fullmatch(r"CatMQ is ready: (\S+)\n", first_line(process))
        assert ready
        yield ready[1]
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        process.communicate(timeout=90)
