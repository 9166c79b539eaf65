"""Tables of the portal: columns, cells, sorting and paging. The URL holds the state of
a list.

A view declares columns, each with a function that makes a cell from a row, and calls
list_table(), simple_table() or split_table().
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar
from urllib.parse import urlencode

from django.http import HttpRequest
from django.utils.functional import Promise

from metadata.listing.pages import ListPage, ListQuery

V = TypeVar("V")
Text = str | Promise
# Tables up to this length are not split into pages.
ROWS_PER_PAGE = 100
# A spreadsheet runs a CSV value with such a prefix as a formula.
FORMULA_PREFIXES = ("=", "+", "-", "@", "\t", "\r")
# Classes of table cells by kind of cell. The class of other kinds is the kind itself.
CSS_CLASSES = {
    **dict.fromkeys(
        ("number", "size", "lasting", "share", "rate", "figure"), "right tight"
    ),
    "phrase": "tight",
    "badge": "mark",
    "spark": "line",
}
# Width of the longest bar in a cell, in units of its SVG.
MAX_BAR_WIDTH = 100
# A phone shows this many columns of a row, on two lines.
PHONE_COLUMNS = 4


@dataclass(frozen=True, slots=True)
class Cell:
    """A value in a table.

    `kind` selects how templates/portal/kit/cell.html shows it. `tone` is ok, warn, bad or
    ''. `title` is shown on hover. `label` is the label of the column, which a phone shows
    before the value. A phone shows `minor` cells on demand only.
    """

    value: Any
    kind: str = "text"
    href: str = ""
    tone: str = ""
    title: Text = ""
    label: Text = ""
    minor: bool = False

    @property
    def classes(self) -> str:
        """Return the classes of the table cell in portal.css."""
        kind_class = CSS_CLASSES.get(self.kind, self.kind)
        return f"{kind_class} minor" if self.minor else kind_class


@dataclass(frozen=True, slots=True)
class Column(Generic[V]):
    """A column of a table.

    `cell` makes the cell from a row. `key` is the URL value that sorts by this column,
    '' if it cannot be sorted. `right` aligns numbers. `lead` shows the column on phones
    even if it is not among the first PHONE_COLUMNS.
    """

    label: Text
    cell: Callable[[V], Cell]
    key: str = ""
    right: bool = False
    lead: bool = False


Columns = Sequence[Column[V]]


@dataclass(frozen=True, slots=True)
class Heading:
    """The heading of a column, with the link that sorts by it."""

    label: Text
    right: bool
    href: str
    state: str


@dataclass(frozen=True, slots=True)
class EmptyHint:
    """Text of an empty list: why it is empty, and what to do next, with a command to
    paste.
    """

    text: Text
    command: str = ""
    href: str = ""
    link: Text = ""


@dataclass(frozen=True, slots=True)
class Table:
    """A table, ready for templates/portal/kit/table.html.

    `previous` and `next` are URLs of pages. `other_parameters` are the URL parameters
    that a new search keeps.
    """

    headings: Sequence[Heading]
    rows: Sequence[Sequence[Cell]]
    empty: EmptyHint
    total: int | None = None
    page: int = 1
    pages: int = 1
    previous: str = ""
    next: str = ""
    caption: Text = ""
    has_minor_columns: bool = False
    other_parameters: Sequence[tuple[str, str]] = field(default_factory=tuple)


def text(value: Any, href: str = "") -> Cell:
    """Return a cell with plain text, None as a dash."""
    return Cell(value, "text", href)


def figure(value: Any) -> Cell:
    """Return a cell with a figure that is written already, None as a dash."""
    return Cell(value, "figure")


def phrase(value: Any) -> Cell:
    """Return a cell with a few words that stay on a line."""
    return Cell(value, "phrase")


def code(value: Any, href: str = "") -> Cell:
    """Return a cell with a name or value that people type or copy."""
    return Cell(value, "code", href)


def code_with_fold(name: str, href: str, summary: Text, items: Sequence[Any]) -> Cell:
    """Return a cell with a name that people type, and a list that unfolds below it.

    Each item has `label`, `href` and `note`. Without items the cell is as `code()` makes it.
    """
    if not items:
        return code(name, href)
    return Cell((name, summary, items), "names", href)


def long(value: Any) -> Cell:
    """Return a cell with text of any length, such as a key. It is broken anywhere."""
    return Cell(value, "long")


def folded(line: str, full_text: str, fold_id: str) -> Cell:
    """Return a cell with a line that unfolds to the full text.

    `fold_id` is unique on the page, so that an unfolded cell stays open when a live list is
    refreshed.
    """
    return Cell((line, full_text, fold_id), "fold")


def prose(value: Any) -> Cell:
    """Return a cell with sentences. It gets most of the width."""
    return Cell(value, "prose")


def number(value: int | float | None, href: str = "", tone: str = "") -> Cell:
    """Return a cell with a whole number, None as a dash."""
    return Cell(value, "number", href, tone)


def lag(unread: int | None, *, largest: int, is_late: bool, label: str) -> Cell:
    """Return a cell with unread messages and a bar, None as a dash.

    The bar of `largest` messages has the full width. `label` says in words what the bar
    shows. `is_late` colours it as a warning.
    """
    if unread is None:
        return number(None)
    width = MAX_BAR_WIDTH * min(unread / largest, 1) if largest else 0
    return Cell((unread, f"{width:.1f}", label), "lag", tone="warn" if is_late else "")


def per_second(value: float | None) -> Cell:
    """Return a cell with a rate, None as a dash."""
    return Cell(value, "rate")


def share(value: float) -> Cell:
    return Cell(f"{100 * value:.1f} %", "share")


def badge(value: Text, tone: str = "") -> Cell:
    return Cell(value, "badge", tone=tone)


def timestamp(at_ms: int | None) -> Cell:
    """Return a cell with a point in time, ms since 1970."""
    return Cell(at_ms, "when")


def duration(duration_ms: int | None, tone: str = "") -> Cell:
    return Cell(duration_ms, "lasting", tone=tone)


def spark(values: Sequence[int]) -> Cell:
    return Cell(values, "spark")


def parse_list_query(request: HttpRequest, *, sort: str = "") -> ListQuery:
    """Return the search, sort order and page number from the URL. Invalid values are
    ignored.
    """
    parameters = request.GET
    page = parameters.get("page", "1")
    return ListQuery(
        search=parameters.get("q", "").replace("\0", "").strip(),
        sort=parameters.get("sort", sort),
        # Longer numbers are refused: they would overflow the offset of the query.
        page=int(page) if page.isascii() and page.isdigit() and len(page) < 8 else 1,
    )


def list_table(
    request: HttpRequest, columns: Columns[V], page: ListPage[V], *, empty: EmptyHint
) -> Table:
    """Return a page of a list as a table with sorting and paging."""
    return Table(
        headings=_build_headings(request, columns),
        rows=_build_rows(columns, page.items),
        empty=empty,
        total=page.total,
        page=page.page,
        pages=page.pages,
        previous=url_with(request, page=page.page - 1) if page.page > 1 else "",
        next=url_with(request, page=page.page + 1) if page.page < page.pages else "",
        has_minor_columns=_has_minor_columns(columns),
        other_parameters=[
            (name, value)
            for name, value in request.GET.dict().items()
            if name not in ("q", "page")
        ],
    )


def simple_table(
    columns: Columns[V], items: Iterable[V], empty: EmptyHint, caption: Text = ""
) -> Table:
    """Return a table that shows all rows, without sorting and paging."""
    headings = [Heading(column.label, column.right, "", "") for column in columns]
    rows, has_minor_columns = _build_rows(columns, items), _has_minor_columns(columns)
    return Table(
        headings=headings,
        rows=rows,
        empty=empty,
        caption=caption,
        has_minor_columns=has_minor_columns,
    )


def split_table(
    request: HttpRequest,
    columns: Columns[V],
    items: Sequence[V],
    empty: EmptyHint,
    *,
    parameter: str,
) -> Table:
    """Return a table of rows that are all in memory, split into pages if there are many.

    The URL parameter `parameter` holds the page number, so that a page may have several
    such tables.
    """
    if len(items) <= ROWS_PER_PAGE:
        return simple_table(columns, items, empty)
    pages = -(-len(items) // ROWS_PER_PAGE)
    number = request.GET.get(parameter, "1")
    page = (
        min(max(int(number), 1), pages)
        if number.isascii() and number.isdigit() and len(number) < 8
        else 1
    )
    return replace(
        simple_table(
            columns, items[ROWS_PER_PAGE * (page - 1) : ROWS_PER_PAGE * page], empty
        ),
        total=len(items),
        page=page,
        pages=pages,
        previous=url_with(request, **{parameter: page - 1}) if page > 1 else "",
        next=url_with(request, **{parameter: page + 1}) if page < pages else "",
    )


def _build_rows(columns: Columns[V], items: Iterable[V]) -> list[list[Cell]]:
    # Translated once per table, not once per cell.
    labels = [(c, str(c.label), _is_minor(n, c)) for n, c in enumerate(columns)]
    return [
        [
            replace(column.cell(item), label=label, minor=minor)
            for column, label, minor in labels
        ]
        for item in items
    ]


def _is_minor(index: int, column: Column[V]) -> bool:
    return index >= PHONE_COLUMNS and not column.lead


def _has_minor_columns(columns: Columns[V]) -> bool:
    return any(_is_minor(index, column) for index, column in enumerate(columns))


def _build_headings(request: HttpRequest, columns: Columns[V]) -> list[Heading]:
    """Return the headings of a list. The first click sorts numbers descending and texts
    ascending.
    """
    sort = request.GET.get("sort", "")
    headings = []
    for column in columns:
        state = (
            {column.key: "ascending", f"-{column.key}": "descending"}.get(sort, "")
            if column.key
            else ""
        )
        first_sort = f"-{column.key}" if column.right else column.key
        reversed_sort = column.key if column.right else f"-{column.key}"
        href = (
            url_with(
                request, sort=reversed_sort if sort == first_sort else first_sort, page=""
            )
            if column.key
            else ""
        )
        headings.append(Heading(column.label, column.right, href, state))
    return headings


def url_with(request: HttpRequest, **changes: Any) -> str:
    """Return the query string of the current URL with some parameters changed. Empty values
    are dropped.
    """
    parameters = {
        **request.GET.dict(),
        **{name: str(value) for name, value in changes.items()},
    }
    return f"?{urlencode({name: value for name, value in parameters.items() if value})}"


def without_formula(value: Any) -> Any:
    """Return a value for a CSV file, quoted if a spreadsheet would run it as a formula.

    >>> without_formula("=1+1"), without_formula("one"), without_formula(-1)
    ("'=1+1", 'one', -1)
    """
    return (
        f"'{value}"
        if isinstance(value, str) and value.startswith(FORMULA_PREFIXES)
        else value
    )
