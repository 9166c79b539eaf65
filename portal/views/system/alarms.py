"""Alarms: what lasts, what was, and who looks after it."""

from __future__ import annotations

from json import dumps, loads
from typing import Any

from django import forms
from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy as lazy
from django.utils.translation import ngettext

from metadata.actors import Actor
from metadata.config import config
from metadata.db.access import LOOK
from metadata.errors import NotFound
from metadata.listing import operation_lists
from metadata.listing.operation_lists import AlarmRow
from metadata.monitoring import alarms, mails
from metadata.rules.alarm_rules import ONCE, parse_subject
from portal.actions.action import Action, Preview
from portal.auth.access import actor, may
from portal.kit import pages, rows
from portal.kit.pages import Link, to
from portal.kit.tables import (
    Cell,
    Column,
    Columns,
    Empty,
    Text,
    badge,
    listed,
    number,
    text,
    wanted,
    when,
)
from portal.templatetags.shapes import at, count

MOST_NAMED = 20  # alarms in the preview of an acknowledgement
SHOWN: dict[str, bool | None] = {"lasting": True, "over": False, "all": None}


def alarms_list(request: HttpRequest) -> HttpResponse:
    """Show the alarms that last, those that are over, or both."""
    shown = request.GET.get("show", "lasting")
    shown = shown if shown in SHOWN else "lasting"
    who = actor(request)
    found = operation_lists.alarms(query=wanted(request), actor=who, lasting=SHOWN[shown])
    admin = may(request, "admin")
    columns: Columns[AlarmRow] = [
        Column(_("State"), _state),
        Column(_("What"), lambda one: text(rows.alarm_kind(one.kind)), "kind"),
        Column(_("Where"), lambda one: rows.alarm_place(one, administrator=admin), "name"),
        Column(_("Detail"), lambda one: text(_detail(one))),
        Column(_("Times"), lambda one: number(one.times), right=True),
        Column(_("Since"), lambda one: when(one.since_ms), "since"),
        Column(_("Until"), lambda one: when(one.ended_at_ms)),
        Column(_("Acknowledged by"), lambda one: _care(one, who)),
    ]
    words = {"lasting": _("Active"), "over": _("Resolved"), "all": _("All")}
    filters = [
        Link(words[one], f"{to('alarms')}?show={one}", "on" if one == shown else "")
        for one in SHOWN
    ]
    table = listed(request, columns, found, empty=_none(shown))
    intro = _mails() if admin else ""
    may_all = shown == "lasting" and alarms.list_acknowledgeable(actor=who)
    actions = [Link(_("Acknowledge all"), to("alarms-acknowledge"))] if may_all else []
    return pages.list_page(
        request,
        _("Alarms"),
        table,
        section="alarms",
        filters=filters,
        intro=intro,
        actions=actions,
    )


def _none(shown: str) -> Empty:
    if shown == "lasting":
        return Empty(_("No active alarms. A job checks every minute."))
    return Empty(_("No matching alarms"))


def _mails() -> str:
    """Describe the state of alarm mails, for administrators."""
    if not config.smtp_url:
        return _("Nobody is mailed: CATMQ_SMTP_URL is not set.")
    post = mails.read_mail_state()
    if post.waiting and post.error:
        return _("%(count)d mails are waiting. The last attempt failed: %(why)s") % {
            "count": post.waiting, "why": post.error,
        }  # fmt: skip
    last = at(post.sent_at_ms)
    return _("%(count)d mails are waiting. The last one was sent at %(last)s.") % {
        "count": post.waiting,
        "last": last,
    }


def _state(one: AlarmRow) -> Cell:
    if one.ended_at_ms is not None:
        return badge(_("resolved"), "ok")
    return badge(_("active"), "warn" if one.acknowledged_by else "bad")


def _detail(one: AlarmRow) -> str:
    detail = rows.alarm_detail(one)
    if not one.count:
        return detail
    return _("%(detail)s (%(count)s so far)") % {
        "detail": detail,
        "count": count(one.count),
    }


def _care(row: AlarmRow, who: Actor) -> Cell:
    """Return the person who looks after an alarm, or a link to acknowledge it."""
    if row.acknowledged_by or row.ended_at_ms is not None:
        return text(row.acknowledged_by or None)
    if not alarms.may_manage(who, parse_subject(row.kind, row.name)):
        return text(None)
    return text(_("acknowledge"), to("alarm-acknowledge", row.kind, row.name))


class ChosenAlarms(forms.Form):
    """The alarms that a preview named, so that none that is raised meanwhile is
    acknowledged unseen.
    """

    chosen = forms.CharField(widget=forms.HiddenInput, max_length=500_000)

    def clean_chosen(self) -> list[tuple[str, str]]:
        try:
            pairs = [
                (str(kind), str(name)) for kind, name in loads(self.cleaned_data["chosen"])
            ]
        except (TypeError, ValueError):
            raise forms.ValidationError(
                _("This form has expired. Open its page again.")
            ) from None
        return pairs


class Acknowledge(Action):
    """Says that somebody looks after an alarm."""

    right = LOOK  # the verb asks for more, by what the alarm is about
    what = "alarm"
    section = "alarms"
    button = lazy("Acknowledge")
    everywhere = True
    back_to = ("alarms",)

    def heading(self) -> Text:
        words = {"what": rows.alarm_kind(self.word("kind")), "where": self.name}
        return _("Acknowledge: %(what)s, %(where)s") % words

    def preview(self, fields: dict[str, Any]) -> Preview:
        """Describe what acknowledging means. Raises Forbidden for who may not."""
        alarms.require_manage(self.actor, parse_subject(self.word("kind"), self.name))
        if self.word("kind") in ONCE:
            return Preview(
                effects=[
                    _("This alarm reports a past event. It ends when you acknowledge it.")
                ]
            )
        return Preview(
            effects=[
                _(
                    "Your name is shown with the alarm. The overview does not mention it until "
                    "it is raised again."
                )
            ]
        )

    def run(self, fields: dict[str, Any]) -> Text:
        alarms.acknowledge(kind=self.word("kind"), name=self.name, actor=self.actor)
        return _("The alarm is acknowledged.")


class AcknowledgeAll(Action):
    """Acknowledge every active alarm that the person may acknowledge and that the preview
    named.
    """

    right = LOOK  # the verb asks for more, by what each alarm is about
    what = "alarm"
    section = "alarms"
    title = lazy("Acknowledge all alarms")
    button = lazy("Acknowledge all")
    everywhere = True
    back_to = ("alarms",)
    form_class = ChosenAlarms

    def get(self, request: HttpRequest, **words: Any) -> HttpResponse:
        chosen = alarms.list_acknowledgeable(actor=self.actor)
        if not chosen:
            raise NotFound(_("There is no active alarm that you may acknowledge."))
        return self._ask(ChosenAlarms({"chosen": dumps(chosen)}))

    def preview(self, fields: dict[str, Any]) -> Preview:
        """Name the alarms. Raises Forbidden if one of them is not the person's to
        acknowledge.
        """
        for kind, name in fields["chosen"]:
            alarms.require_manage(self.actor, parse_subject(kind, name))
        effects: list[Text] = [
            _(
                "Your name is shown with each alarm. "
                "The overview does not mention it until it is raised again."
            )
        ]
        named: list[Text] = [
            _("%(what)s: %(where)s") % {"what": rows.alarm_kind(kind), "where": name}
            for kind, name in fields["chosen"][:MOST_NAMED]
        ]
        more = len(fields["chosen"]) - MOST_NAMED
        if more > 0:
            named.append(ngettext("%s more alarm", "%s more alarms", more) % count(more))
        if any(kind in ONCE for kind, _name in fields["chosen"]):
            effects.append(_("Alarms that report a past event end."))
        return Preview(effects=[*effects, *named])

    def run(self, fields: dict[str, Any]) -> Text:
        done = alarms.acknowledge_all(chosen=fields["chosen"], actor=self.actor)
        return ngettext(
            "%s alarm is acknowledged.", "%s alarms are acknowledged.", done
        ) % count(done)
