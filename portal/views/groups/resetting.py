"""Moving the offsets of a group, with a preview, and taking such moves back; the group may
be running.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from urllib.parse import urlencode

from django import forms
from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy as lazy
from django.utils.translation import ngettext

from messagestore.consume import offset_reset
from messagestore.consume.offset_reset import Move, Target
from metadata.actors import Actor
from metadata.errors import Invalid
from metadata.groups import groups, offset_resets
from metadata.groups.offset_resets import PastMove
from portal.actions.action import Preview
from portal.actions.fields import shown_only_for, time_field
from portal.actions.pickers import Picker
from portal.auth.access import actor, may
from portal.kit import cells, navigation, pages
from portal.kit.pages import Link, page_url
from portal.kit.setting_fields import QueuesField
from portal.kit.tables import (
    Cell,
    Column,
    Columns,
    EmptyHint,
    Table,
    Text,
    badge,
    code,
    number,
    simple_table,
    text,
    timestamp,
)
from portal.views.groups.group_actions import GroupAction

MOVES_PER_PAGE = 50  # moves of queues
LATEST_MOVES = 8  # on the page of the group


class ResetForm(forms.Form):
    """Target of a reset of a group's offsets."""

    topic = forms.CharField(
        label=lazy("Topic"),
        required=False,
        max_length=210,
        help_text=lazy("Empty: all that it reads."),
        widget=Picker("topic"),
    )
    to = forms.ChoiceField(
        label=lazy("To"),
        choices=(
            ("earliest", lazy("the earliest message")),
            ("latest", lazy("the latest offset (skip all unread messages)")),
            ("offset", lazy("an offset")),
            ("time", lazy("a point in time")),
            ("group", lazy("the offsets of another group")),
        ),
    )
    offset = shown_only_for(
        forms.IntegerField(label=lazy("Offset"), required=False, min_value=0),
        "to",
        "offset",
    )
    at = shown_only_for(time_field(help_text=lazy("For a point in time.")), "to", "time")
    minutes_ago = shown_only_for(
        forms.IntegerField(
            label=lazy("Minutes ago"),
            required=False,
            min_value=0,
            help_text=lazy("Instead of a date and time."),
        ),
        "to",
        "time",
    )
    source_group = shown_only_for(
        forms.CharField(
            label=lazy("Other group"),
            required=False,
            max_length=100,
            widget=Picker("group"),
            help_text=lazy(
                "For the offsets of another group, as it has committed them in this topic."
            ),
        ),
        "to",
        "group",
    )
    queues = QueuesField(
        label=lazy("Only these queues"),
        required=False,
        max_length=1000,
        help_text=lazy("Names such as orders/3, separated by commas; empty: all."),
    )
    instance = forms.CharField(
        label=lazy("Instance"),
        required=False,
        help_text=lazy("Only for broadcasting groups."),
    )


class MoveOffsets(GroupAction):
    danger = True

    def moves(self, fields: dict[str, Any], *, dry_run: bool) -> list[Move]:
        raise NotImplementedError

    def preview(self, fields: dict[str, Any]) -> Preview:
        """From where to where each queue moves, and what that skips or repeats."""
        found = self.moves(fields, dry_run=True)
        return Preview(effects=self._effects(found), table=_planned(found))

    def _effects(self, found: Sequence[Move]) -> list[Text]:
        topics = sorted({one.topic for one in found})
        where = ", ".join(
            [*topics[:LATEST_MOVES], *(["…"] if len(topics) > LATEST_MOVES else [])]
        )
        queues = ngettext(
            "%(count)d queue of %(topics)s is reset.",
            "%(count)d queues of %(topics)s are reset.",
            len(found),
        )
        repeated, skipped = (
            sum(one.repeated for one in found),
            sum(one.skipped for one in found),
        )
        what = _("%(repeated)d messages are read again, %(skipped)d are skipped.")
        effects: list[Text] = [
            queues % {"count": len(found), "topics": where},
            what % {"repeated": repeated, "skipped": skipped},
        ]
        if any(one.asked is not None for one in found):
            effects.append(_("A queue without this offset is set to its nearest offset."))
        kept = ", ".join(cells.queue_name(one.queue) for one in found if one.kept)
        if kept:
            effects.append(
                _(
                    "The other group has no offset in these queues, which stay as they are: %s"
                )
                % kept
            )
        if not groups.describe(name=self.name, actor=self.actor).stopped:
            effects.append(
                _(
                    "The group is running. Its members continue at the new offsets within moments."
                )
            )
            effects.append(
                _(
                    "Messages that are being handled at that moment may be handled although they "
                    "are skipped, or twice."
                )
            )
        return effects

    def run(self, fields: dict[str, Any]) -> Text:
        made = self.moves(fields, dry_run=False)
        return _("%d offsets were reset. The list of resets on this page undoes it.") % sum(
            not one.kept for one in made
        )


class ResetGroup(MoveOffsets):
    form_class = ResetForm
    button = lazy("Reset the offsets")
    title = lazy("Reset offsets of %(name)s")

    def initial(self) -> dict[str, Any]:
        view = groups.describe(name=self.name, actor=self.actor)
        first = next((one.topic for one in view.subscriptions), "")
        return {"topic": first, "to": "earliest", **super().initial()}

    def extra_context(self) -> dict[str, Any]:
        """Return links to the previews of the usual resets, of all topics unless the URL
        names one.
        """
        topic = urlencode({"topic": self.request.GET.get("topic", "")})
        page = f"{page_url('group-reset', self.name)}?preview=yes&{topic}"
        usual = [
            Link(_("Earliest"), f"{page}&to=earliest"),
            Link(_("Latest"), f"{page}&to=latest"),
        ]
        for label, minutes in (
            (_("15 min ago"), 15),
            (_("1 hour ago"), 60),
            (_("1 day ago"), 1440),
        ):
            usual.append(Link(label, f"{page}&to=time&minutes_ago={minutes}"))
        return {"quick": usual}

    def moves(self, fields: dict[str, Any], *, dry_run: bool) -> list[Move]:
        ago, at = fields["minutes_ago"], fields["at"]
        at_time = fields["to"] == "time"
        if at_time and (ago is None) == (at is None):
            raise Invalid.field("at", _("Give a date and time, or minutes, and not both."))
        if fields["to"] == "group" and not fields["source_group"]:
            raise Invalid.field("source_group", _("Name the other group."))
        target = Target(
            to=fields["to"],
            offset=fields["offset"] if fields["to"] == "offset" else None,
            at_ms=round(at.timestamp() * 1000) if at is not None and at_time else None,
            ago_ms=None if ago is None or not at_time else ago * 60_000,
            source_group=fields["source_group"] if fields["to"] == "group" else None,
        )
        return offset_reset.reset(
            group=self.name, topic=fields["topic"] or None, target=target,
            queues=fields["queues"] or None,
            instance=fields["instance"] or None, actor=self.actor, dry_run=dry_run,
        )  # fmt: skip


class UndoReset(MoveOffsets):
    button = lazy("Undo the reset")
    title = lazy("Undo an offset reset of %(name)s")

    def moves(self, fields: dict[str, Any], *, dry_run: bool) -> list[Move]:
        return offset_reset.undo(
            group=self.name,
            reset=self.url_argument("reset"),
            actor=self.actor,
            dry_run=dry_run,
        )


def _planned(found: Sequence[Move]) -> Table:
    columns: Columns[Move] = [
        Column(_("Queue"), lambda row: cells.queue(row.queue)),
        Column(_("Requested"), lambda row: number(row.asked), right=True),
        Column(_("Now"), lambda row: number(row.from_offset), right=True),
        Column(_("After"), lambda row: number(row.to_offset), right=True),
        Column(_("Repeated"), lambda row: number(row.repeated), right=True),
        Column(_("Skipped"), lambda row: number(row.skipped), right=True),
    ]
    return simple_table(columns, found, EmptyHint(_("No queues.")))


def moves(request: HttpRequest, name: str) -> HttpResponse:
    """Show where a group's offsets were moved by hand, by whom, and the way back."""
    after = request.GET.get("after", "")
    before_id = (
        int(after) if after.isascii() and after.isdigit() and len(after) < 19 else None
    )
    page = offset_resets.page(
        group=name, limit=MOVES_PER_PAGE, after=before_id, actor=actor(request)
    )
    return pages.render_page(
        request,
        "groups/moves",
        _("Offset resets of %s") % name,
        **navigation.for_group(request, name, "moves"),
        name=name,
        table=_past(name, page.items, manages=may(request, "manage", name, what="group")),
        following=f"?after={page.next}" if page.next else "",
    )


def latest_moves(*, group: str, manages: bool, actor: Actor) -> Table:
    """The latest moves of a group's offsets, for its page."""
    found = offset_resets.page(
        group=group, limit=LATEST_MOVES, after=None, actor=actor
    ).items
    return _past(group, found, manages=manages)


def _past(group: str, found: Sequence[PastMove], *, manages: bool) -> Table:
    undone = {one.undoes for one in found}
    columns: list[Column[PastMove]] = [
        Column(_("Reset"), lambda row: timestamp(row.at_ms)),
        Column(_("Requested by"), lambda row: text(row.actor)),
        Column(_("Queue"), _queue),
        Column(_("From"), lambda row: number(row.from_offset), right=True),
        Column(_("To"), lambda row: number(row.to_offset), right=True),
        Column(_("State"), lambda row: _moved(row, undone=row.reset in undone)),
    ]
    if manages:
        columns.append(
            Column(
                _("Action"), lambda row: _way_back(group, row, undone=row.reset in undone)
            )
        )
    return simple_table(columns, found, EmptyHint(_("No offset resets")))


def _queue(one: PastMove) -> Cell:
    name = cells.queue_name(one.queue)
    return code(
        f"{name} ({one.instance})" if one.instance else name, page_url("topic", one.topic)
    )


def _moved(one: PastMove, *, undone: bool) -> Cell:
    if not one.done:
        return badge(_("not carried out"), "warn")
    return badge(_("undone")) if undone else badge(_("done"), "ok")


def _way_back(group: str, one: PastMove, *, undone: bool) -> Cell:
    offered = one.done and not undone
    return (
        text(_("undo"), page_url("group-undo", group, one.reset)) if offered else text(None)
    )
