"""Pages that repeat what the code says stay equal to it, and no page is lost."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from catmq_site.management.commands.settings_reference import generate_files
from metadata.errors import Code
from tests.support.environment import ROOT

DOCS = ROOT / "docs"
SQL = ROOT / "messagestore/tables/sql"


def first_column(path: Path) -> list[str]:
    """The names in backquotes that open the rows of a page's tables and have something
    behind them.
    """
    return re.findall(r"^\| `([\w.-]+)` \| \S", path.read_text(), re.MULTILINE)


ROOMS = ("tutorial", "how-to", "reference", "explanation", "decisions")


@pytest.mark.parametrize("path", generate_files(), ids=lambda path: path.name)
def test_what_is_made_from_the_declarations_of_settings_is_up_to_date(path: Path) -> None:
    """`manage.py settings_reference --write` makes it anew."""
    assert path.read_text() == generate_files()[path]


def test_every_dependency_has_its_reason() -> None:
    pinned = [
        line.split("==")[0].partition("[")[0].strip()  # without extras
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


def test_every_decision_has_a_number_a_date_and_a_status_and_the_index_says_the_same() -> (
    None
):
    form = re.compile(
        r"# (\d{4}) (.+)\n\n(\d{4}-\d\d-\d\d), "
        r"(proposed|accepted|superseded by \[\d{4}\]\(.+\))\.\n"
    )
    rows, numbers = [], []
    for path in sorted((DOCS / "decisions").glob("[!R]*.md")):
        head = form.match(path.read_text())
        assert head, (
            f"{path.name} begins with '# NUMBER Title', then the date and the status"
        )
        number, title, date, status = head.groups()
        assert path.name.startswith(f"{number}-"), path.name
        numbers.append(int(number))
        rows.append(f"| [{number}]({path.name}) | {title} | {date} | {status} |")
    assert numbers == list(range(1, len(rows) + 1))
    index = (DOCS / "decisions/README.md").read_text()
    assert re.findall(r"^\| \[.*$", index, re.MULTILINE) == rows


def test_every_cell_of_the_comparison_has_a_source() -> None:
    """A footnote with a date, or a page of this documentation; or it says that there is
    none.
    """
    page = (DOCS / "explanation/comparison.md").read_text()
    rows = [
        row.strip("|").split("|") for row in re.findall(r"^\| \w.*\|$", page, re.MULTILINE)
    ]
    assert len(rows) >= 11
    source = re.compile(
        r"\[\^[\w-]+\]|\]\(\S+\.md|`benchmarks/README\.md`|not found in the documentation"
    )
    assert [
        f"{row[0]}: {cell}" for row in rows for cell in row[1:] if not source.search(cell)
    ] == []
    note = re.compile(
        r"^\[\^([\w-]+)\]: \[.+\]\(https://.+\).*, read \d{4}-\d\d-\d\d\.$", re.MULTILINE
    )
    assert sorted(note.findall(page)) == sorted(
        set(re.findall(r"\[\^([\w-]+)\](?!:)", page))
    )


def test_links_between_pages_lead_somewhere() -> None:
    broken = [
        f"{page.relative_to(ROOT)}: {target}"
        for page in sorted([*DOCS.rglob("*.md"), *ROOT.glob("README*.md")])
        for target in re.findall(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)", page.read_text())
        if not (page.parent / target).exists()
    ]
    assert broken == []


@pytest.mark.parametrize("name", ["README", "docs/tutorial/first-steps"])
def test_a_chinese_page_has_the_blocks_lines_links_and_figures_of_the_english_one(
    name: str,
) -> None:
    english, chinese = ((ROOT / f"{name}{end}").read_text() for end in (".md", ".zh-CN.md"))
    block = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
    assert block.findall(chinese) == block.findall(english) != []
    # of lines: heading, item, row, picture, step
    kinds = re.compile(r"^(?:#+|\* |[|!\d])", re.MULTILINE)
    assert kinds.findall(chinese) == kinds.findall(english)
    links = re.compile(r"\]\(([^)]+?)(?:\.zh-CN)?(?:\.md)?\)")
    assert sorted(links.findall(chinese)) == sorted(links.findall(english))
    assert figures(chinese) == figures(english)
    assert f"]({Path(name).name}.zh-CN.md)" in english[:100]
    assert f"]({Path(name).name}.md)" in chinese[:100]


def figures(page: str) -> list[str]:
    """The figures in the tables of a page."""
    return re.findall(r"\d[\d,.]*", "".join(re.findall(r"^\|.*$", page, re.MULTILINE)))


def test_what_belongs_to_a_numbered_step_is_indented_by_four_spaces() -> None:
    """The site takes fewer for the end of the list."""
    short = [
        f"{path.relative_to(ROOT)}: {line}"
        for path in sorted(DOCS.rglob("*.md"))
        for step in re.findall(
            r"^\d+\. .*\n(?:(?: .*)?\n)*", path.read_text(), re.MULTILINE
        )
        for line in step.splitlines()
        if re.match(r" {1,3}\S", line)
    ]
    assert short == []


def test_every_error_code_is_explained() -> None:
    assert first_column(DOCS / "reference/errors.md") == [code.value for code in Code]


def test_every_column_of_a_node_is_described() -> None:
    """As the SQL of MySQL and MariaDB creates it: tables, columns and types."""
    made = re.findall(
        r"^CREATE TABLE IF NOT EXISTS (\S+) \((.*?)^\)",
        (SQL / "mysql.sql").read_text(),
        re.MULTILINE | re.DOTALL,
    )
    declared = {
        name.replace("{table}", "message_N"): re.findall(
            r"^    ([a-z_]+) +([A-Z]+(?:\(\d+\))?)", columns, re.MULTILINE
        )
        for name, columns in made
    }
    page = (DOCS / "reference/tables.md").read_text()
    described = {
        section.partition("`")[0]: re.findall(
            r"^\| `(\w+)` \| ([A-Z]+(?:\(\d+\))?) \| \S", section, re.MULTILINE
        )
        for section in page.split("\n## `")[1:]
    }
    assert described == declared
