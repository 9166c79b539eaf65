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
from portal.kit import cells, pages
from portal.kit.charts import Chart, Event, Row
from portal.kit.pages import Fact, Link, SavedFilters, Step
from portal.kit.tables import (
    Cell,
    Column,
    EmptyHint,
    Table,
    badge,
    code,
    duration,
    folded,
    long,
    number,
    per_second,
    prose,
    share,
    simple_table,
    spark,
    text,
    timestamp,
)
from portal.templatetags.formats import DASH, DAY, HOUR, MINUTE

EXAMPLE_EVENTS = {
    4: ("rebalance", "Rebalance: a joined"),
    7: ("reset", "Reset by ada: orders"),
    17: ("alarm", "Alarm: far behind"),
    25: ("resolved", "Resolved: far behind"),
}
STEPS_WITHOUT_VALUE = (
    10,
    11,
    13,
    14,
)  # steps without a value; the one between them stands alone
TONES = ("", "ok", "warn", "bad")
NO_TOPICS = EmptyHint("No matching topics.", "catmq topic create orders", "#", "Create")
# of about the 100 characters that a name may have
LONG_NAME = "a.name-with_every.allowed-character." * 3


class ExampleForm(forms.Form):
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
    form = ExampleForm(
        {"name": "orders", "count": "0", "mode": "one", "topic": "orders", "body": "{}"}
    )
    form.is_valid()
    return pages.render_page(
        request,
        "system/parts",
        _("Parts of pages"),
        intro=_("For developers: every part in all its states. The figures are invented."),
        crumbs=[Link("Crumb", "#"), Link(LONG_NAME, "#")],
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
        badges=[cells.state(word) for word in cells.STATE_LABELS],
        chips=[
            Link("who: ada", "#"),
            Link(f"what: {LONG_NAME}", "#"),
            Link("cannot be removed", ""),
        ],
        saved=SavedFilters(
            "topics",
            [FilterView("chosen", "q=a"), FilterView(LONG_NAME, "q=b")],
            "q=a",
            "q=a",
        ),
        table=_table(now),
        none=simple_table([Column("Name", text)], [], NO_TOPICS),
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
    examples: dict[str, Cell] = {
        "code": code(LONG_NAME, "#"),
        "badge": badge("paused", "warn"),
        "number": number(1_234_567),
        "number, warn": number(3, tone="warn"),
        "text": text("plain"),
        "when": timestamp(now - 3 * MINUTE),
        "when, ahead": timestamp(now + 2 * HOUR),
        "when, old": timestamp(now - 40 * DAY),
        "lasting": duration(61_000, "bad"),
        "per second": per_second(0.25),
        "share": share(0.25),
        "spark": spark([1, 5, 2, 8, 3]),
        "long": long("text of any length, broken anywhere " * 3),
        "fold": folded("one line", "that unfolds\nto more", "example"),
        "prose": prose("Sentences, which get most of the width."),
        "nothing": text(None),
    }
    columns: list[Column[int]] = [
        Column(name, partial(_same, cell)) for name, cell in examples.items()
    ]
    return simple_table(columns, range(2), EmptyHint(""), "A caption of a table")


def _same(cell: Cell, _row: int) -> Cell:
    return cell


def _chart(now: int, *, lines: int) -> Chart:
    labels = ["sent", "handled", "pulled"][:lines]
    found = []
    for n in range(30):
        at = now // MINUTE * MINUTE - (29 - n) * MINUTE
        values = [(abs((n * (line + 3)) % 17 - 8) * 10.0) for line in range(lines)]
        shown = tuple(
            (DASH, "") if n in STEPS_WITHOUT_VALUE else (f"{one:.1f}", one)
            for one in values
        )
        found.append(
            Row(
                at,
                at // 1000,
                shown,
                [Event(at + 20_000, *EXAMPLE_EVENTS[n])] if n in EXAMPLE_EVENTS else (),
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
        Step("Dead letter", LONG_NAME, now - MINUTE, "bad"),
    ]
