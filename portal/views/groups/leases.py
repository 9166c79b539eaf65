"""Leased messages of a share group: who holds them, for how long, and the release of a
lease.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy as lazy
from django.utils.translation import ngettext

from messagestore.consume.group_lag import QueueLag
from messagestore.shares import listing
from messagestore.shares.known_queues import MAX_RUNS
from messagestore.shares.listing import LeasedRun
from metadata.actors import Actor
from metadata.groups.groups import GroupView
from metadata.rules.groups.states import GroupMode
from portal.actions.action import Preview
from portal.kit import cells
from portal.kit.pages import Fact, page_url
from portal.kit.tables import (
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

# Runs on the page of a group.
MAX_RUNS_SHOWN = 50


class Leases(NamedTuple):
    """Leased runs of a group as a page shows them. `notes` are reasons why members get no
    messages.
    """

    table: Table
    notes: list[Text]


def find_leases(
    view: GroupView, offsets: Sequence[QueueLag], *, manages: bool, actor: Actor
) -> Leases | None:
    """Return the leases of a share group, None for other groups."""
    if view.mode != GroupMode.SHARE:
        return None
    runs = listing.runs(group=view.name, actor=actor, limit=MAX_RUNS_SHOWN)
    columns: list[Column[LeasedRun]] = [
        Column(_("Queue"), lambda row: cells.queue(row.queue)),
        Column(_("Offsets"), lambda row: code(f"{row.first} … {row.end - 1}")),
        Column(
            _("Member"), lambda row: text(row.owner) if row.owner else badge(_("nobody"))
        ),
        Column(_("Unfinished"), lambda row: number(row.messages), right=True),
        Column(_("Finished"), lambda row: number(row.finished), right=True),
        Column(_("Deliveries"), lambda row: number(row.deliveries), right=True),
        Column(
            _("Lease ends in"),
            lambda row: (
                duration(row.lease_left_ms) if row.is_leased else badge(_("ended"), "warn")
            ),
            right=True,
        ),
    ]
    if manages:
        columns.append(
            Column(
                _("Action"),
                lambda row: (
                    text(None)
                    if not row.is_leased
                    else text(
                        _("release"),
                        page_url("run-release", view.name, row.queue, row.first),
                    )
                ),
            )
        )
    silent_nodes = ", ".join(sorted(runs.away))
    caption = (
        _("Node %s does not answer, so its leases are not listed.") % silent_nodes
        if silent_nodes
        else ""
    )
    return Leases(
        simple_table(
            columns, runs.runs, EmptyHint(_("No messages are leased.")), caption=caption
        ),
        [*_explain_no_messages(view, offsets)],
    )


def lease_tiles(offsets: Sequence[QueueLag]) -> list[Fact]:
    """Return the figures that only share groups have."""
    # Without leased messages the tile shows a dash.
    oldest = max((lag.oldest_lease_ms or 0 for lag in offsets), default=0) or None
    return [
        Fact(_("In flight"), sum(lag.in_flight or 0 for lag in offsets), kind="number"),
        Fact(_("Redelivered"), sum(lag.redelivered or 0 for lag in offsets), kind="number"),
        Fact(_("Oldest lease"), oldest, kind="lasts"),
    ]


def lease_columns() -> list[Column[QueueLag]]:
    """Return the columns of a queue's leases, which replace the column of its owner."""
    return [
        Column(_("In flight"), lambda row: number(row.in_flight), right=True),
        Column(_("Redelivered"), lambda row: number(row.redelivered), right=True),
        Column(_("Oldest lease"), lambda row: duration(row.oldest_lease_ms), right=True),
    ]


def _explain_no_messages(view: GroupView, offsets: Sequence[QueueLag]) -> Iterator[Text]:
    """Yield the reasons why members get no messages."""
    if view.stopped:
        yield _("The group is paused: no messages are delivered.")
    if not view.members:
        yield _("There are no members, so nobody gets messages.")
    # The members of the group must finish or release some messages first.
    full_queues = ", ".join(
        cells.queue_name(lag.queue) for lag in offsets if (lag.runs or 0) >= MAX_RUNS
    )
    # A queue leases nothing more while it has MAX_RUNS unfinished runs.
    if full_queues:
        sentence = _(
            "Members do not finish what they have. New messages are not leased in queues: %s"
        )
        yield sentence % full_queues
    if not any(lag.lag for lag in offsets):
        yield _("All messages are handled: nothing is left to lease.")


class ReleaseRun(GroupAction):
    danger = True
    button = lazy("Release")
    title = lazy("Release messages of %(name)s")

    def preview(self, fields: dict[str, Any]) -> Preview:
        # A run is named by its queue and first offset.
        queue, first = int(self.url_argument("queue")), int(self.url_argument("first"))
        runs = listing.runs(
            group=self.name, queue=queue, limit=1_000, actor=self.actor
        ).runs
        # The lease may have ended since the page was shown. Then there is nothing to
        # release.
        leased_runs = [run for run in runs if run.first == first and run.is_leased]
        count = sum(run.messages for run in leased_runs)
        owners = ", ".join(sorted({run.owner or _("nobody") for run in leased_runs})) or _(
            "nobody"
        )
        sentence = ngettext(
            "%(count)d message of %(owners)s will be delivered to the next member that "
            "asks, unless it is "
            "finished before.",
            "%(count)d messages of %(owners)s will be delivered to the next member that "
            "asks, unless "
            "they are finished before.",
            count,
        )
        return Preview(effects=[sentence % {"count": count, "owners": owners}])

    def run(self, fields: dict[str, Any]) -> Text:
        queue, first = int(self.url_argument("queue")), int(self.url_argument("first"))
        count = listing.release(group=self.name, queue=queue, first=first, actor=self.actor)
        return ngettext("%d lease was ended.", "%d leases were ended.", count) % count
