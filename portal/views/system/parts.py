"""Every part of the kit in all its states, on one page: where a new part is looked at, in
light, dark and on phones, and from where a page's author copies. Its examples are invented;
only its headings are translated."""

from __future__ import annotations

from functools import partial

from django import forms
from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext as _

from metadata.db.clock import database_now, ms
from metadata.users.saved_filters import FilterView
from portal.actions.pickers import Picker
from portal.kit import pages, rows
from portal.kit.charts import Chart, Event, Row
from portal.kit.pages import Fact, Link, Saved, Step
from portal.kit.tables import (
    Cell,
    Column,
    Empty,
    Table,
    badge,
    code,
    fold,
    lasting,
    long,
    number,
    per_second,
    plain,
    prose,
    share,
    spark,
    text,
    when,
)
from portal.templatetags.shapes import DASH, DAY, HOUR, MINUTE

EVENTS = {
    4: ("rebalance", "Rebalance: a joined"),
    7: ("reset", "Reset by ada: orders"),
    17: ("alarm", "Alarm: far behind"),
    25: ("resolved", "Resolved: far behind"),
}
GAPS = (10, 11, 13, 14)  # steps without a value; the one between them stands alone
TONES = ("", "ok", "warn", "bad")
NONE = Empty("No matching topics.", "catmq topic create orders", "#", "Create")
# of about the 100 characters that a name may have
LONG = "a.name-with_every.allowed-character." * 3


class Example(forms.Form):
    """Fields of every kind; that of the wrong one is refused."""

    name = forms.CharField(label="Text", max_length=100, help_text="Letters, digits, . _ -")
    count = forms.IntegerField(
        label="Number", min_value=1, help_text="Its unit stands here."
    )
    mode = forms.ChoiceField(
        label="Choice", choices=(("one", "the first"), ("two", "the second"))
    )
    topic = forms.CharField(label="Picker", widget=Picker("topic"))
    ordered = forms.BooleanField(label="Flag", required=False, help_text="What it changes.")
    body = forms.CharField(label="Long text", widget=forms.Textarea(attrs={"rows": 2}))


def parts(request: HttpRequest) -> HttpResponse:
    """The page for developers."""
    now = ms(database_now())
    form = Example(
        {"name": "orders", "count": "0", "mode": "one", "topic": "orders", "body": "{}"}
    )
    form.is_valid()
    return pages.show(
        request,
        "system/parts",
        _("Parts of pages"),
        intro=_("For developers: every part in all its states. The figures are invented."),
        crumbs=[Link("Crumb", "#"), Link(LONG, "#")],
        tabs=[
            Link("Chosen", "#", "on"),
            Link("Other", "#"),
            Link("A long label of a tab", "#"),
        ],
        actions=[
            Link("Danger", "#", "danger"),
            Link("Primary", "#", "primary"),
            Link("Other", "#"),
        ],
        tiles=_tiles(),
        badges=[rows.state(word) for word in rows.WORDS],
        chips=[
            Link("who: ada", "#"),
            Link(f"what: {LONG}", "#"),
            Link("cannot be removed", ""),
        ],
        saved=Saved(
            "topics", [FilterView("chosen", "q=a"), FilterView(LONG, "q=b")], "q=a", "q=a"
        ),
        table=_table(now),
        none=plain([Column("Name", text)], [], NONE),
        chart=_chart(now, lines=3),
        nothing=Chart("No figures", ["sent"], []),
        steps=_steps(now),
        tones=TONES[1:],
        form=form,
    )


def _tiles() -> list[Fact]:
    return [
        *(Fact(f"Tone {tone or 'none'}", 1234, "#", tone, "number") for tone in TONES),
        Fact("Rate", 12.34, kind="rate"),
        Fact("Duration", 725_000, kind="lasts"),
        Fact("Size", 1 << 30, kind="size"),
        Fact("Words", "behind", tone="warn", kind="words", note="catches up in 12 min"),
        Fact("Not known", None, kind="number"),
    ]


def _table(now: int) -> Table:
    cells: dict[str, Cell] = {
        "code": code(LONG, "#"),
        "badge": badge("paused", "warn"),
        "number": number(1_234_567),
        "number, warn": number(3, tone="warn"),
        "text": text("plain"),
        "when": when(now - 3 * MINUTE),
        "when, ahead": when(now + 2 * HOUR),
        "when, old": when(now - 40 * DAY),
        "lasting": lasting(61_000, "bad"),
        "per second": per_second(0.25),
        "share": share(0.25),
        "spark": spark([1, 5, 2, 8, 3]),
        "long": long("text of any length, broken anywhere " * 3),
        "fold": fold("one line", "that unfolds\nto more", "example"),
        "prose": prose("Sentences, which get most of the width."),
        "nothing": text(None),
    }
    columns: list[Column[int]] = [
        Column(name, partial(_same, cell)) for name, cell in cells.items()
    ]
    return plain(columns, range(2), Empty(""), "A caption of a table")


def _same(cell: Cell, _row: int) -> Cell:
    return cell


def _chart(now: int, *, lines: int) -> Chart:
    labels = ["sent", "handled", "pulled"][:lines]
    found = []
    for n in range(30):
        at = now // MINUTE * MINUTE - (29 - n) * MINUTE
        values = [(abs((n * (line + 3)) % 17 - 8) * 10.0) for line in range(lines)]
        shown = tuple((DASH, "") if n in GAPS else (f"{one:.1f}", one) for one in values)
        found.append(
            Row(
                at,
                at // 1000,
                shown,
                [Event(at + 20_000, *EVENTS[n])] if n in EVENTS else (),
            )
        )
    return Chart("Messages per second", labels, found)


def _steps(now: int) -> list[Step]:
    return [
        Step("Sent", "No time is recorded for this step."),
        Step("Stored", "topic/3, offset 145", now - HOUR, "ok", "#"),
        Step(
            "Failed", "TimeoutError: no answer of the mail server", now - 5 * MINUTE, "warn"
        ),
        Step("Dead letter", LONG, now - MINUTE, "bad"),
    ]
