"""The one way to show a list: columns, rows of cells, search, sort and pages; the URL holds
its state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar
from urllib.parse import urlencode

from django.http import HttpRequest
from django.utils.functional import Promise

from metadata.listing.pages import Listed, Wanted

V = TypeVar("V")
Text = str | Promise
ROWS_PER_PAGE = 100  # rows of a table that is shown as a whole
FORMULA_PREFIXES = ("=", "+", "-", "@", "\t", "\r")  # what spreadsheets would run
PHONE_COLUMNS = 4  # columns of a row on a phone: two lines


@dataclass(frozen=True, slots=True)
class Cell:
    """One value: `kind` says how templates/portal/kit/cell.html shows it; `tone` is ok,
    warn, bad or ''.

    `title` is shown on hover. `label` is that of its column, which stands before it on a
    phone; there a
    `minor` one is shown on demand only.
    """

    value: Any
    kind: str = "text"
    href: str = ""
    tone: str = ""
    title: Text = ""
    label: Text = ""
    minor: bool = False


@dataclass(frozen=True, slots=True)
class Column(Generic[V]):
    """A column: `cell` makes its value of a row; `key` is what the URL sorts by, '' if it
    cannot be sorted;
    `right`: numbers; `lead`: shown on phones though it is not among the first `LEADING`."""

    label: Text
    cell: Callable[[V], Cell]
    key: str = ""
    right: bool = False
    lead: bool = False


Columns = Sequence[Column[V]]


@dataclass(frozen=True, slots=True)
class Heading:
    """A column's heading with its link: the first click sorts the usual way round, the
    second the other.
    """

    label: Text
    right: bool
    href: str
    state: str


@dataclass(frozen=True, slots=True)
class EmptyHint:
    """Text of an empty list: why it is empty, and what to do next, with a command to paste."""

    text: Text
    command: str = ""
    href: str = ""
    link: Text = ""


@dataclass(frozen=True, slots=True)
class Table:
    """A list, ready for templates/portal/kit/table.html."""

    heads: Sequence[Heading]
    rows: Sequence[Sequence[Cell]]
    empty: EmptyHint
    total: int | None = None
    page: int = 1
    pages: int = 1
    previous: str = ""
    following: str = ""
    caption: Text = ""
    folds: bool = False  # a phone leaves out columns until asked
    keep: Sequence[tuple[str, str]] = field(default_factory=tuple)


def text(value: Any, href: str = "") -> Cell:
    """Plain text, perhaps a link; None is a dash."""
    return Cell(value, "text", href)


def code(value: Any, href: str = "") -> Cell:
    """Something that is typed or copied."""
    return Cell(value, "code", href)


def long(value: Any) -> Cell:
    """Text of any length, such as a message: it is broken anywhere."""
    return Cell(value, "long")


def folded(shown: str, whole: str, place: str) -> Cell:
    """One line that unfolds to more; `place` is unique on the page: what is open stays so
    in a live list.
    """
    return Cell((shown, whole, place), "fold")


def prose(value: Any) -> Cell:
    """Sentences, which get most of the width."""
    return Cell(value, "prose")


def number(value: int | float | None, href: str = "", tone: str = "") -> Cell:
    """A whole number; None is not known."""
    return Cell(value, "number", href, tone)


def per_second(value: float | None) -> Cell:
    """A rate; None is not known."""
    return Cell(value, "rate")


def share(value: float) -> Cell:
    return Cell(f"{100 * value:.1f} %", "share")


def badge(value: Text, tone: str = "") -> Cell:
    return Cell(value, "badge", tone=tone)


def timestamp(at_ms: int | None) -> Cell:
    """A point in time, ms since 1970."""
    return Cell(at_ms, "when")


def duration(for_ms: int | None, tone: str = "") -> Cell:
    return Cell(for_ms, "lasting", tone=tone)


def spark(values: Sequence[int]) -> Cell:
    return Cell(values, "spark")


def parse_list_query(request: HttpRequest, *, sort: str = "") -> Wanted:
    """Return the part of a list that the URL asks for; what makes no sense there is
    ignored.
    """
    asked = request.GET
    page = asked.get("page", "1")
    return Wanted(
        search=asked.get("q", "").replace("\0", "").strip(),
        sort=asked.get("sort", sort),
        page=int(page) if page.isascii() and page.isdigit() and len(page) < 8 else 1,
    )


def list_table(
    request: HttpRequest, columns: Columns[V], found: Listed[V], *, empty: EmptyHint
) -> Table:
    """One page of a list as a table."""
    return Table(
        heads=_heads(request, columns),
        rows=_rows(columns, found.items),
        empty=empty,
        total=found.total,
        page=found.page,
        pages=found.pages,
        previous=url_with(request, page=found.page - 1) if found.page > 1 else "",
        following=url_with(request, page=found.page + 1)
        if found.page < found.pages
        else "",
        folds=_folds(columns),
        keep=[
            (name, value)
            for name, value in request.GET.dict().items()
            if name not in ("q", "page")
        ],
    )


def simple_table(
    columns: Columns[V], found: Iterable[V], empty: EmptyHint, caption: Text = ""
) -> Table:
    """A short table that is shown as a whole."""
    heads = [Heading(column.label, column.right, "", "") for column in columns]
    rows, folds = _rows(columns, found), _folds(columns)
    return Table(heads=heads, rows=rows, empty=empty, caption=caption, folds=folds)


def split_table(
    request: HttpRequest,
    columns: Columns[V],
    found: Sequence[V],
    empty: EmptyHint,
    *,
    word: str,
) -> Table:
    """A table whose rows are all known: as a whole, or a page of many; `word` of the URL
    says which.
    """
    if len(found) <= ROWS_PER_PAGE:
        return simple_table(columns, found, empty)
    pages = -(-len(found) // ROWS_PER_PAGE)
    asked = request.GET.get(word, "1")
    page = (
        min(max(int(asked), 1), pages)
        if asked.isascii() and asked.isdigit() and len(asked) < 8
        else 1
    )
    return replace(
        simple_table(
            columns, found[ROWS_PER_PAGE * (page - 1) : ROWS_PER_PAGE * page], empty
        ),
        total=len(found),
        page=page,
        pages=pages,
        previous=url_with(request, **{word: page - 1}) if page > 1 else "",
        following=url_with(request, **{word: page + 1}) if page < pages else "",
    )


def _rows(columns: Columns[V], found: Iterable[V]) -> list[list[Cell]]:
    labels = [(one, str(one.label), _is_minor(n, one)) for n, one in enumerate(columns)]
    return [
        [
            replace(column.cell(one), label=label, minor=minor)
            for column, label, minor in labels
        ]
        for one in found
    ]


def _is_minor(place: int, column: Column[V]) -> bool:
    return place >= PHONE_COLUMNS and not column.lead


def _folds(columns: Columns[V]) -> bool:
    return any(_is_minor(place, column) for place, column in enumerate(columns))


def _heads(request: HttpRequest, columns: Columns[V]) -> list[Heading]:
    sort = request.GET.get("sort", "")
    heads = []
    for column in columns:
        state = (
            {column.key: "ascending", f"-{column.key}": "descending"}.get(sort, "")
            if column.key
            else ""
        )
        first = f"-{column.key}" if column.right else column.key
        other = column.key if column.right else f"-{column.key}"
        href = (
            url_with(request, sort=other if sort == first else first, page="")
            if column.key
            else ""
        )
        heads.append(Heading(column.label, column.right, href, state))
    return heads


def url_with(request: HttpRequest, **changed: Any) -> str:
    """Return the address of a page with some words changed; empty ones are left out."""
    words = {**request.GET.dict(), **{name: str(value) for name, value in changed.items()}}
    return f"?{urlencode({name: value for name, value in words.items() if value})}"


def without_formula(value: Any) -> Any:
    """Return a value of a CSV file that no spreadsheet takes for a formula.

    >>> harmless("=1+1"), harmless("one"), harmless(-1)
    ("'=1+1", 'one', -1)
    """
    return (
        f"'{value}"
        if isinstance(value, str) and value.startswith(FORMULA_PREFIXES)
        else value
    )
