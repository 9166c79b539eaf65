"""Messages that the members of a share group have: who, since when, and a lease that is to
end.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy as lazy
from django.utils.translation import ngettext

from messagestore.consume.lag import QueueLag
from messagestore.shares import listing
from messagestore.shares.known_queues import MAX_RUNS
from messagestore.shares.listing import LeasedRun, LeasedRuns
from metadata.actors import Actor
from metadata.groups.groups import GroupView
from portal.actions.action import Preview
from portal.kit import cells
from portal.kit.pages import Fact, page_url
from portal.kit.tables import (
    Cell,
    Column,
    EmptyHint,
    Table,
    Text,
    badge,
    code,
    duration,
    number,
    simple_table,
    text,
)
from portal.views.groups.group_actions import GroupAction

MAX_RUNS_SHOWN = 50


class Leases(NamedTuple):
    """Leased runs of a group as a page shows them; `notes`: why its members get nothing, ''
    if they do.
    """

    table: Table
    notes: list[Text]


def find_leases(
    view: GroupView, offsets: Sequence[QueueLag], *, manages: bool, actor: Actor
) -> Leases | None:
    """Return the leases of a share group; None of another."""
    if view.mode != "share":
        return None
    found = listing.runs(group=view.name, actor=actor, limit=MAX_RUNS_SHOWN)
    return Leases(_table(view, found, manages=manages), [*_notes(view, offsets)])


def lease_tiles(offsets: Sequence[QueueLag]) -> list[Fact]:
    """Figures of a share group that others do not have."""
    oldest = max((one.oldest_lease_ms or 0 for one in offsets), default=0) or None
    return [
        Fact(_("In flight"), sum(one.in_flight or 0 for one in offsets), kind="number"),
        Fact(_("Redelivered"), sum(one.redelivered or 0 for one in offsets), kind="number"),
        Fact(_("Oldest lease"), oldest, kind="lasts"),
    ]


def lease_columns() -> list[Column[QueueLag]]:
    """Columns of a queue's leases, in the place of its owner."""
    return [
        Column(_("In flight"), lambda row: number(row.in_flight), right=True),
        Column(_("Redelivered"), lambda row: number(row.redelivered), right=True),
        Column(_("Oldest lease"), lambda row: duration(row.oldest_lease_ms), right=True),
    ]


def _notes(view: GroupView, offsets: Sequence[QueueLag]) -> Iterator[Text]:
    """Yield the reasons why members get no messages, where there are such."""
    if view.stopped:
        yield _("The group is paused: no messages are delivered.")
    if not view.members:
        yield _("There are no members, so nobody gets messages.")
    held = ", ".join(
        cells.queue_name(one.queue) for one in offsets if (one.runs or 0) >= MAX_RUNS
    )
    if held:
        what = _(
            "Members do not finish what they have. New messages are not leased in queues: %s"
        )
        yield what % held
    if not any(one.lag for one in offsets):
        yield _("All messages are handled: nothing is left to lease.")


def _table(view: GroupView, found: LeasedRuns, *, manages: bool) -> Table:
    shown: list[Column[LeasedRun]] = [
        Column(_("Queue"), lambda row: cells.queue(row.queue)),
        Column(_("Offsets"), lambda row: code(f"{row.first} … {row.end - 1}")),
        Column(
            _("Member"), lambda row: text(row.owner) if row.owner else badge(_("nobody"))
        ),
        Column(_("Unfinished"), lambda row: number(row.messages), right=True),
        Column(_("Finished"), lambda row: number(row.finished), right=True),
        Column(_("Deliveries"), lambda row: number(row.deliveries), right=True),
        Column(_("Lease ends in"), _left, right=True),
    ]
    if manages:
        shown.append(Column(_("Action"), lambda row: _release_link(view, row)))
    away = ", ".join(sorted(found.away))
    caption = (
        _("Node %s does not answer, so its leases are not listed.") % away if away else ""
    )
    return simple_table(
        shown, found.runs, EmptyHint(_("No messages are leased.")), caption=caption
    )


def _left(one: LeasedRun) -> Cell:
    return duration(one.lease_left_ms) if one.is_leased else badge(_("ended"), "warn")


def _release_link(view: GroupView, one: LeasedRun) -> Cell:
    if not one.is_leased:
        return text(None)
    return text(_("release"), page_url("run-release", view.name, one.queue, one.first))


class ReleaseRun(GroupAction):
    danger = True
    button = lazy("Release")
    title = lazy("Release messages of %(name)s")

    def preview(self, fields: dict[str, Any]) -> Preview:
        queue, first = int(self.url_argument("queue")), int(self.url_argument("first"))
        found = listing.runs(
            group=self.name, queue=queue, limit=1_000, actor=self.actor
        ).runs
        mine = [one for one in found if one.first == first and one.is_leased]
        count = sum(one.messages for one in mine)
        owners = ", ".join(sorted({one.owner or _("nobody") for one in mine})) or _(
            "nobody"
        )
        what = ngettext(
            "%(count)d message of %(owners)s will be delivered to the next member that "
            "asks, unless it is "
            "finished before.",
            "%(count)d messages of %(owners)s will be delivered to the next member that "
            "asks, unless "
            "they are finished before.",
            count,
        )
        return Preview(effects=[what % {"count": count, "owners": owners}])

    def run(self, fields: dict[str, Any]) -> Text:
        queue, first = int(self.url_argument("queue")), int(self.url_argument("first"))
        count = listing.release(group=self.name, queue=queue, first=first, actor=self.actor)
        return ngettext("%d lease was ended.", "%d leases were ended.", count) % count
