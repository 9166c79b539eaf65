"""Pages that repeat what the code says stay equal to it, and no page is lost."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from catmq_site.management.commands.settings_reference import files
from metadata.errors import Code
from tests.support.environment import ROOT

DOCS = ROOT / "docs"


def first_column(page: Path) -> list[str]:
    """The names in backquotes that open the rows of a page's tables and have something behind them."""
    return re.findall(r"^\| `([\w.-]+)` \| \S", page.read_text(), re.MULTILINE)


ROOMS = ("tutorial", "how-to", "reference", "explanation", "decisions")


@pytest.mark.parametrize("path", files(), ids=lambda path: path.name)
def test_what_is_made_from_the_declarations_of_settings_is_up_to_date(path: Path) -> None:
    """`manage.py settings_reference --write` makes it anew."""
    assert path.read_text() == files()[path]


def test_every_dependency_has_its_reason() -> None:
    pinned = [
        line.split("==")[0].strip()
        for file in sorted(ROOT.glob("requirements*.txt"))
        for line in file.read_text().splitlines()
        if "==" in line and not line.startswith("#")
    ]
    explained = first_column(DOCS / "reference/dependencies.md")
    assert sorted(pinned) == sorted(explained)


@pytest.mark.parametrize("room", ROOMS)
def test_every_page_is_in_the_index_of_its_room(room: str) -> None:
    index = (DOCS / room / "README.md").read_text()
    pages = {path.name for path in (DOCS / room).glob("*.md")} - {"README.md"}
    assert {name for name in pages if f"]({name})" not in index} == set()


def test_links_between_pages_lead_somewhere() -> None:
    broken = [
        f"{page.relative_to(ROOT)}: {target}"
        for page in sorted([*DOCS.rglob("*.md"), ROOT / "README.md"])
        for target in re.findall(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)", page.read_text())
        if not (page.parent / target).exists()
    ]
    assert broken == []


def test_every_error_code_is_explained() -> None:
    assert first_column(DOCS / "reference/errors.md") == [code.value for code in Code]
