"""Resets of a group's offsets, with a preview, and their reversal. The group may be
running.
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
from metadata.rules.rights import Right
from portal.actions.action import Preview
from portal.actions.fields import shown_only_for, time_field
from portal.actions.pickers import Picker
from portal.auth.access import actor, may
from portal.kit import cells, navigation, pages
from portal.kit.pages import Link, page_url
from portal.kit.setting_fields import QueuesField
from portal.kit.tables import (
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

# Moved queues on a page of the history.
MOVES_PER_PAGE = 50
# Moved queues on the page of the group.
LATEST_MOVES = 8


class ResetForm(forms.Form):
    """Queues whose offsets are reset, and the target of the reset."""

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
    """Moves offsets, with a preview of the messages that are skipped or repeated."""

    danger = True

    def moves(self, fields: dict[str, Any], *, dry_run: bool) -> list[Move]:
        """Move the offsets. With `dry_run`, return only the moves."""
        raise NotImplementedError

    def preview(self, fields: dict[str, Any]) -> Preview:
        """Describe where each queue's offset moves to, and the messages that this skips or
        repeats.
        """
        moves = self.moves(fields, dry_run=True)
        columns: Columns[Move] = [
            Column(_("Queue"), lambda row: cells.queue(row.queue)),
            Column(_("Requested"), lambda row: number(row.asked), right=True),
            Column(_("Now"), lambda row: number(row.from_offset), right=True),
            Column(_("After"), lambda row: number(row.to_offset), right=True),
            Column(_("Repeated"), lambda row: number(row.repeated), right=True),
            Column(_("Skipped"), lambda row: number(row.skipped), right=True),
        ]
        return Preview(
            effects=self._describe_moves(moves),
            table=simple_table(columns, moves, EmptyHint(_("No queues."))),
        )

    def _describe_moves(self, moves: Sequence[Move]) -> list[Text]:
        topics = sorted({move.topic for move in moves})
        topic_names = ", ".join(
            [*topics[:LATEST_MOVES], *(["…"] if len(topics) > LATEST_MOVES else [])]
        )
        queue_effect = ngettext(
            "%(count)d queue of %(topics)s is reset.",
            "%(count)d queues of %(topics)s are reset.",
            len(moves),
        )
        repeated, skipped = (
            sum(move.repeated for move in moves),
            sum(move.skipped for move in moves),
        )
        message_effect = _("%(repeated)d messages are read again, %(skipped)d are skipped.")
        effects: list[Text] = [
            queue_effect % {"count": len(moves), "topics": topic_names},
            message_effect % {"repeated": repeated, "skipped": skipped},
        ]
        # An offset below the log start or above the log end is moved to the nearest
        # existing offset.
        if any(move.asked is not None for move in moves):
            effects.append(_("A queue without this offset is set to its nearest offset."))
        kept_queues = ", ".join(cells.queue_name(move.queue) for move in moves if move.kept)
        if kept_queues:
            effects.append(
                _(
                    "The other group has no offset in these queues, which stay as they are: %s"
                )
                % kept_queues
            )
        # Members learn of the new offsets with their next heartbeat.
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
        moves = self.moves(fields, dry_run=False)
        return _("%d offsets were reset. The list of resets on this page undoes it.") % sum(
            not move.kept for move in moves
        )


class ResetGroup(MoveOffsets):
    form_class = ResetForm
    button = lazy("Reset the offsets")
    title = lazy("Reset offsets of %(name)s")

    def initial(self) -> dict[str, Any]:
        view = groups.describe(name=self.name, actor=self.actor)
        # The form suggests a topic. An empty field resets all topics.
        first_topic = next((subscription.topic for subscription in view.subscriptions), "")
        return {"topic": first_topic, "to": "earliest", **super().initial()}

    def extra_context(self) -> dict[str, Any]:
        """Return links to previews of the usual resets.

        They reset all topics unless the URL names a topic.
        """
        query = urlencode({"topic": self.request.GET.get("topic", "")})
        page = f"{page_url('group-reset', self.name)}?preview=yes&{query}"
        links = [
            Link(_("Earliest"), f"{page}&to=earliest"),
            Link(_("Latest"), f"{page}&to=latest"),
        ]
        for label, minutes in (
            (_("15 min ago"), 15),
            (_("1 hour ago"), 60),
            (_("1 day ago"), 1440),
        ):
            links.append(Link(label, f"{page}&to=time&minutes_ago={minutes}"))
        return {"quick": links}

    def moves(self, fields: dict[str, Any], *, dry_run: bool) -> list[Move]:
        minutes_ago, at = fields["minutes_ago"], fields["at"]
        is_time = fields["to"] == "time"
        # Both could contradict each other.
        if is_time and (minutes_ago is None) == (at is None):
            raise Invalid.field("at", _("Give a date and time, or minutes, and not both."))
        if fields["to"] == "group" and not fields["source_group"]:
            raise Invalid.field("source_group", _("Name the other group."))
        target = Target(
            to=fields["to"],
            offset=fields["offset"] if fields["to"] == "offset" else None,
            at_ms=round(at.timestamp() * 1000) if at is not None and is_time else None,
            ago_ms=None if minutes_ago is None or not is_time else minutes_ago * 60_000,
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


def show_moves(request: HttpRequest, name: str) -> HttpResponse:
    """Show the resets of a group's offsets, the user of each, and links that undo them."""
    after = request.GET.get("after", "")
    # A longer number would overflow the column of the id.
    before_id = (
        int(after) if after.isascii() and after.isdigit() and len(after) < 19 else None
    )
    # Pages continue below the id of the last move, so that new moves shift nothing.
    page = offset_resets.list_moves(
        group=name, limit=MOVES_PER_PAGE, after=before_id, actor=actor(request)
    )
    return pages.render_page(
        request,
        "groups/moves",
        _("Offset resets of %s") % name,
        **navigation.for_group(request, name, "moves"),
        name=name,
        table=_history_table(
            name, page.items, manages=may(request, Right.MANAGE, name, what="group")
        ),
        following=f"?after={page.next}" if page.next else "",
    )


def latest_moves(*, group: str, manages: bool, actor: Actor) -> Table:
    """Return the latest resets of a group's offsets, for its page."""
    moves = offset_resets.list_moves(
        group=group, limit=LATEST_MOVES, after=None, actor=actor
    ).items
    return _history_table(group, moves, manages=manages)


def _history_table(group: str, moves: Sequence[PastMove], *, manages: bool) -> Table:
    # An undo is a move of its own, which names the move that it undoes.
    undone_resets = {move.undoes for move in moves}
    columns: list[Column[PastMove]] = [
        Column(_("Reset"), lambda row: timestamp(row.at_ms)),
        Column(_("Requested by"), lambda row: text(row.actor)),
        Column(
            _("Queue"),
            lambda row: code(
                cells.queue_name(row.queue)
                + (f" ({row.instance})" if row.instance else ""),
                page_url("topic", row.topic),
            ),
        ),
        Column(_("From"), lambda row: number(row.from_offset), right=True),
        Column(_("To"), lambda row: number(row.to_offset), right=True),
        Column(
            _("State"),
            lambda row: (
                badge(_("not carried out"), "warn")
                if not row.done
                else badge(_("undone"))
                if row.reset in undone_resets
                else badge(_("done"), "ok")
            ),
        ),
    ]
    if manages:
        columns.append(
            Column(
                _("Action"),
                lambda row: (
                    text(_("undo"), page_url("group-undo", group, row.reset))
                    if row.done and row.reset not in undone_resets
                    else text(None)
                ),
            )
        )
    return simple_table(columns, moves, EmptyHint(_("No offset resets")))
