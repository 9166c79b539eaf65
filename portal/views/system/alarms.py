"""Alarms: what lasts, what was, and who looks after it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy as lazy

from metadata.actors import Actor
from metadata.config import config
from metadata.db.access import LOOK
from metadata.listing import operation_lists
from metadata.listing.operation_lists import AlarmRow
from metadata.monitoring import alarms, mails
from metadata.rules.alarm_rules import ONCE, subject
from portal.actions.action import Action, Preview
from portal.auth.access import actor, may
from portal.kit import pages, rows
from portal.kit.pages import Link, to
from portal.kit.tables import Cell, Column, Empty, Text, badge, code, listed, number, text, wanted, when
from portal.templatetags.shapes import at

SHOWN: dict[str, bool | None] = {"lasting": True, "over": False, "all": None}


def alarms_list(request: HttpRequest) -> HttpResponse:
    """Show the alarms that last, those that are over, or both."""
    shown = request.GET.get("show", "lasting")
    shown = shown if shown in SHOWN else "lasting"
    who = actor(request)
    found = operation_lists.alarms(wanted=wanted(request), actor=who, lasting=SHOWN[shown])
    columns = (
        Column(_("State")),
        Column(_("What"), "kind"),
        Column(_("Where"), "name"),
        Column(_("Detail")),
        Column(_("Times"), right=True),
        Column(_("Since (UTC)"), "since"),
        Column(_("Until (UTC)")),
        Column(_("Looked after")),
    )
    admin = may(request, "admin")
    words = {"lasting": _("Lasting"), "over": _("Over"), "all": _("All")}
    filters = [Link(words[one], f"{to('alarms')}?show={one}", "on" if one == shown else "") for one in SHOWN]
    table = listed(request, columns, found, row=lambda row: _alarm(row, who, admin), empty=_none(shown))
    intro = _mails() if admin else ""
    return pages.list_page(request, _("Alarms"), table, section="alarms", filters=filters, intro=intro)


def _none(shown: str) -> Empty:
    if shown == "lasting":
        return Empty(_("No alarm lasts, or none fits the search. A job looks for trouble every minute."))
    return Empty(_("There was no alarm, or none fits the search."))


def _mails() -> str:
    """Describe whether people are mailed, for administrators."""
    if not config.smtp_url:
        return _("Nobody is mailed: CATMQ_SMTP_URL is not set.")
    post = mails.post()
    if post.waiting and post.error:
        return _("%(count)d mails wait, as the last could not be sent: %(why)s") % {
            "count": post.waiting, "why": post.error,
        }  # fmt: skip
    last = at(post.sent_at_ms)
    return _("%(count)d mails wait; the last was sent at %(last)s.") % {"count": post.waiting, "last": last}


def _alarm(row: AlarmRow, who: Actor, admin: bool) -> Sequence[Cell]:
    lasts = row.ended_at_ms is None
    detail = row.detail if not row.count else _("%(detail)s (%(count)d so far)") % {
        "detail": row.detail, "count": row.count,
    }  # fmt: skip
    return (
        badge(_("lasts"), "warn" if row.acknowledged_by else "bad") if lasts else badge(_("over"), "ok"),
        text(rows.alarm_kind(row.kind)),
        code(row.name or None, rows.alarm_href(row.kind, row.name, administrator=admin)),
        text(detail),
        number(row.times),
        when(row.since_ms),
        when(row.ended_at_ms),
        _care(row, lasts, who),
    )


def _care(row: AlarmRow, lasts: bool, who: Actor) -> Cell:
    """Return the person who looks after an alarm, or a link to acknowledge it."""
    if row.acknowledged_by or not lasts:
        return text(row.acknowledged_by or None)
    if not alarms.may_manage(who, subject(row.kind, row.name)):
        return text(None)
    return text(_("acknowledge"), to("alarm-acknowledge", row.kind, row.name))


class Acknowledge(Action):
    """Says that somebody looks after an alarm."""

    right = LOOK  # the verb asks for more, by what the alarm is about
    what = "alarm"
    section = "alarms"
    button = lazy("Acknowledge")

    def target(self) -> str:
        """Everybody may look at all alarms."""
        return "*"

    def heading(self) -> Text:
        """The page's title."""
        words = {"what": rows.alarm_kind(self.word("kind")), "where": self.word("name")}
        return _("Acknowledge: %(what)s, %(where)s") % words

    def back(self) -> str:
        """The alarms."""
        return to("alarms")

    def preview(self, fields: dict[str, Any]) -> Preview:
        """Describe what acknowledging means. Raises Forbidden for who may not."""
        alarms.require_manage(self.actor, subject(self.word("kind"), self.word("name")))
        if self.word("kind") in ONCE:
            return Preview(effects=[_("It tells of what happened, and is over with this.")])
        return Preview(
            effects=[
                _("Your name stands beside it, and the first page is quiet about it until it comes again.")
            ]
        )

    def run(self, fields: dict[str, Any]) -> Text:
        """Says so."""
        alarms.acknowledge(kind=self.word("kind"), name=self.word("name"), actor=self.actor)
        return _("The alarm is acknowledged.")
