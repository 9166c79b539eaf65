"""README and tutorial do what they say: their blocks are run, in order, in a fresh copy of
the project.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import module_from_spec
from pathlib import Path
from types import ModuleType

import pytest

from tests.support import documents
from tests.support.environment import ROOT, free_port
from tests.support.server import Server, clean_environment

README = (ROOT / "README.md").read_text()
# The statements of Query with SQL, in the terminal of the README.
QUERY = (
    "```sh\n. .venv/bin/activate; set -a; . var/credentials.env; set +a\n```\n"
    + (ROOT / "docs/how-to/query-with-sql.md").read_text().partition("\n## Which table")[0]
)
TUTORIAL = (ROOT / "docs/tutorial/first-steps.md").read_text()


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fresh copy of the project."""
    return documents.checkout(tmp_path_factory.mktemp("fresh"))


@pytest.fixture
def copied(copy: Path) -> Iterator[Server]:
    """The copy's own script/server, as the pages start it but for the port, on a `var` that
    is new.
    """
    made = CopiedServer(copy / "var", port=free_port(), from_nothing=True)
    made.root = copy
    try:
        yield made.start()
    finally:
        made.clear_away()
        for made_by_pages in (copy / "var", copy.parent / "shop"):
            shutil.rmtree(made_by_pages, ignore_errors=True)


class CopiedServer(Server):
    """A server started without --data, from a copy of the project."""

    root: Path

    def command(self) -> list[str]:
        """How the pages start it."""
        return [str(self.root / "script/server"), "--port", str(self.port)]

    def environment(self) -> dict[str, str]:
        """No setting at all: the data lies where it lies by default."""
        return clean_environment()


def test_the_blocks_of_the_readme_run_and_then_those_of_the_tutorial_beside_the_demo(
    copy: Path, copied: Server
) -> None:
    assert [
        block.strip()
        for block in documents.blocks(README)
        if documents.starts_a_server(block)
    ]
    said = documents.run(copy, documents.script(README, port=copied.port))
    assert said.count("== line") == len(documents.blocks(README)) - 1
    assert said.count("welcome, Ada") == 1, "the handler of the Django project"
    assert README.count("```text\n") == 2
    assert bare().unsaid(README, said) == []
    assert not (copy / "shop").exists(), "the project would be part of the checkout"
    said = documents.run(copy, documents.script(QUERY, port=copied.port))
    assert "'customer-7', None, None, '{\"item\":\"tea\"}')" in said, (
        "the row of the ten lines"
    )
    demo = (
        "script/demo --rate 20 --seconds 40 >demo.log 2>&1 & demo=$!\ntrap 'kill $demo "
        "|| true' EXIT\n"
    )
    few = TUTORIAL.replace("seq 1 10000", "seq 1 500")
    said = documents.run(copy, demo + documents.script(few, port=copied.port))
    assert "\n500\n" in said, "the tutorial's groups are its own"


def bare() -> ModuleType:
    """Return script/bare, which compares output with the page on other machines."""
    loader = SourceFileLoader("bare", str(ROOT / "script/bare"))
    module = module_from_spec(ModuleSpec("bare", loader, origin=loader.path))
    module.__file__ = loader.path
    sys.modules[loader.name] = module  # dataclasses look there
    loader.exec_module(module)
    return module


def test_output_that_a_page_does_not_show_so_is_found() -> None:
    page = "```text\none\n…\n(1795644972158, 'x')\n```\nno\n```text\n  last\n```\n"
    assert bare().unsaid(page, "one\ntwo\n(1795659482681, 'x')\n  last\n") == []
    assert bare().unsaid(page, "two\none\n(1795659482681, 'y')\n  last, too\n") == [
        "(1795644972158, 'x')",
        "  last",
    ]


def test_the_blocks_of_the_tutorial_run(copy: Path, copied: Server) -> None:
    few = TUTORIAL.replace("seq 1 10000", "seq 1 500")
    said = documents.run(copy, documents.script(few, port=copied.port))
    assert "\n500\n" in said, "the count of what was read after the restart"
    assert "_fail, too" not in said, "failure topics are nobody's business here"


def test_the_blocks_of_a_page_are_found_and_given_an_end() -> None:
    page = (
        "```sh\nscript/server\n```\n\n1. then\n\n   ```sh\n   . .venv/bin/activate\n   "
        "script/test\n   ```\n"
        "```\nno\n```\n```sh\ncatmq consume t --group g > f\npython examples/worker.py\n"
        "curl http://127.0.0.1:8000/livez\n```\n```python\nprint(1)\n```\n"
    )
    found = documents.blocks(page)
    assert [(block.kind, block.line) for block in found] == [
        ("sh", 2),
        ("sh", 8),
        ("sh", 15),
        ("python", 20),
    ]
    assert [documents.starts_a_server(block) for block in found] == [
        True,
        False,
        False,
        False,
    ]
    assert documents.script(page, port=1234).splitlines() == [
        "set -eo pipefail",
        "echo '== line 8' >&2",
        ". .venv/bin/activate",
        "echo '== line 15' >&2",
        "catmq consume t --group g --limit 50 --idle-timeout 3 > f",
        "timeout --preserve-status 5 python examples/worker.py",
        "curl http://127.0.0.1:1234/livez",
        "echo '== line 20' >&2",
        "python - <<'END OF BLOCK'",
        "print(1)",
        "END OF BLOCK",
    ]
    assert documents.python("# ../shop/a.py, at the end\nA = 1\n").splitlines() == [
        "cat >> ../shop/a.py <<'END OF BLOCK'",
        "# ../shop/a.py, at the end",
        "A = 1",
        "END OF BLOCK",
    ]
