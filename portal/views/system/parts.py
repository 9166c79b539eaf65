"""Every part of the kit in all its states on a single page.

Developers look at a new part here, in light, dark and on phones, and copy from here. The
examples are invented. Only headings are translated.
"""

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
# Step 12 stands alone between two gaps.
STEPS_WITHOUT_VALUE = (10, 11, 13, 14)
TONES = ("", "ok", "warn", "bad")
NO_TOPICS = EmptyHint("No matching topics.", "catmq topic create orders", "#", "Create")
# Names have up to 100 characters.
LONG_NAME = "a.name-with_every.allowed-character." * 3


class ExampleForm(forms.Form):
    """Fields of every kind. The number is invalid, so that its error is shown."""

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


def _example_cell(cell: Cell, _row: int) -> Cell:
    return cell


def parts(request: HttpRequest) -> HttpResponse:
    """Show the page for developers."""
    now_ms = ms(database_now())
    form = ExampleForm(
        {"name": "orders", "count": "0", "mode": "one", "topic": "orders", "body": "{}"}
    )
    form.is_valid()
    examples: dict[str, Cell] = {
        "code": code(LONG_NAME, "#"),
        "badge": badge("paused", "warn"),
        "number": number(1_234_567),
        "number, warn": number(3, tone="warn"),
        "text": text("plain"),
        "when": timestamp(now_ms - 3 * MINUTE),
        "when, ahead": timestamp(now_ms + 2 * HOUR),
        "when, old": timestamp(now_ms - 40 * DAY),
        "lasting": duration(61_000, "bad"),
        "per second": per_second(0.25),
        "share": share(0.25),
        "spark": spark([1, 5, 2, 8, 3]),
        "long": long("text of any length, broken anywhere " * 3),
        "fold": folded("one line", "that unfolds\nto more", "example"),
        "prose": prose("Sentences, which get most of the width."),
        "nothing": text(None),
    }
    # Each column shows the same cell in all its rows.
    columns: list[Column[int]] = [
        Column(name, partial(_example_cell, cell)) for name, cell in examples.items()
    ]
    labels = ["sent", "handled", "pulled"]
    rows = []
    for n in range(30):
        at_ms = now_ms // MINUTE * MINUTE - (29 - n) * MINUTE
        values = [(abs((n * (line + 3)) % 17 - 8) * 10.0) for line in range(3)]
        row_cells = tuple(
            (DASH, "") if n in STEPS_WITHOUT_VALUE else (f"{value:.1f}", value)
            for value in values
        )
        rows.append(
            Row(
                at_ms,
                at_ms // 1000,
                row_cells,
                [Event(at_ms + 20_000, *EXAMPLE_EVENTS[n])] if n in EXAMPLE_EVENTS else (),
            )
        )
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
        tiles=[
            *(Fact(f"Tone {tone or 'none'}", 1234, "#", tone, "number") for tone in TONES),
            Fact("Rate", 12.34, kind="rate"),
            Fact("Duration", 725_000, kind="lasts"),
            Fact("Size", 1 << 30, kind="size"),
            Fact(
                "Words",
                "behind",
                tone="warn",
                kind="words",
                note="catches up in 12 min",
            ),
            Fact("Not known", None, kind="number"),
        ],
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
        table=simple_table(columns, range(2), EmptyHint(""), "A caption of a table"),
        none=simple_table([Column("Name", text)], [], NO_TOPICS),
        chart=Chart("Messages per second", labels, rows),
        nothing=Chart("No figures", ["sent"], []),
        steps=[
            Step("Sent", "No time is recorded for this step."),
            Step("Stored", "topic/3, offset 145", now_ms - HOUR, "ok", "#"),
            Step(
                "Failed",
                "TimeoutError: no answer of the mail server",
                now_ms - 5 * MINUTE,
                "warn",
            ),
            Step("Dead letter", LONG_NAME, now_ms - MINUTE, "bad"),
        ],
        tones=TONES[1:],
        form=form,
    )
