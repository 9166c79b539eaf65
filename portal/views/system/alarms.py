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
from metadata.rules.alarm_rules import ONCE, subject
from portal.actions.action import Action, Preview
from portal.auth.access import actor, may
from portal.kit import cells, pages
from portal.kit.pages import Link, page_url
from portal.kit.tables import (
    Cell,
    Column,
    Columns,
    EmptyHint,
    Text,
    badge,
    list_table,
    number,
    parse_list_query,
    text,
    timestamp,
)
from portal.templatetags.formats import format_count, format_time

MAX_ALARMS_NAMED = 20  # alarms in the preview of an acknowledgement
LASTING_FILTERS: dict[str, bool | None] = {"lasting": True, "over": False, "all": None}


def alarms_list(request: HttpRequest) -> HttpResponse:
    """Show the alarms that last, those that are over, or both."""
    shown = request.GET.get("show", "lasting")
    shown = shown if shown in LASTING_FILTERS else "lasting"
    who = actor(request)
    found = operation_lists.alarms(
        wanted=parse_list_query(request), actor=who, lasting=LASTING_FILTERS[shown]
    )
    admin = may(request, "admin")
    columns: Columns[AlarmRow] = [
        Column(_("State"), _state),
        Column(_("What"), lambda row: text(cells.alarm_kind(row.kind)), "kind"),
        Column(
            _("Where"), lambda row: cells.alarm_subject(row, administrator=admin), "name"
        ),
        Column(_("Detail"), lambda row: text(_detail(row))),
        Column(_("Times"), lambda row: number(row.times), right=True),
        Column(_("Since"), lambda row: timestamp(row.since_ms), "since"),
        Column(_("Until"), lambda row: timestamp(row.ended_at_ms)),
        Column(_("Acknowledged by"), lambda row: _care(row, who)),
    ]
    words = {"lasting": _("Active"), "over": _("Resolved"), "all": _("All")}
    filters = [
        Link(words[one], f"{page_url('alarms')}?show={one}", "on" if one == shown else "")
        for one in LASTING_FILTERS
    ]
    table = list_table(request, columns, found, empty=_none(shown))
    intro = _mails() if admin else ""
    may_all = shown == "lasting" and alarms.acknowledgeable(actor=who)
    actions = (
        [Link(_("Acknowledge all"), page_url("alarms-acknowledge"))] if may_all else []
    )
    return pages.render_list(
        request,
        _("Alarms"),
        table,
        section="alarms",
        filters=filters,
        intro=intro,
        actions=actions,
    )


def _none(shown: str) -> EmptyHint:
    if shown == "lasting":
        return EmptyHint(_("No active alarms. A job checks every minute."))
    return EmptyHint(_("No matching alarms"))


def _mails() -> str:
    """Describe the state of alarm mails, for administrators."""
    if not config.smtp_url:
        return _("Nobody is mailed: CATMQ_SMTP_URL is not set.")
    post = mails.post()
    if post.waiting and post.error:
        return _("%(count)d mails are waiting. The last attempt failed: %(why)s") % {
            "count": post.waiting, "why": post.error,
        }  # fmt: skip
    last = format_time(post.sent_at_ms)
    return _("%(count)d mails are waiting. The last one was sent at %(last)s.") % {
        "count": post.waiting,
        "last": last,
    }


def _state(one: AlarmRow) -> Cell:
    if one.ended_at_ms is not None:
        return badge(_("resolved"), "ok")
    return badge(_("active"), "warn" if one.acknowledged_by else "bad")


def _detail(one: AlarmRow) -> str:
    detail = cells.alarm_detail(one)
    if not one.count:
        return detail
    return _("%(detail)s (%(count)s so far)") % {
        "detail": detail,
        "count": format_count(one.count),
    }


def _care(row: AlarmRow, who: Actor) -> Cell:
    """Return the person who looks after an alarm, or a link to acknowledge it."""
    if row.acknowledged_by or row.ended_at_ms is not None:
        return text(row.acknowledged_by or None)
    if not alarms.may_manage(who, subject(row.kind, row.name)):
        return text(None)
    return text(_("acknowledge"), page_url("alarm-acknowledge", row.kind, row.name))


class ChosenAlarmsForm(forms.Form):
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
    object_kind = "alarm"
    section = "alarms"
    button = lazy("Acknowledge")
    needs_right_on_all = True
    back_to = ("alarms",)

    def heading(self) -> Text:
        words = {"what": cells.alarm_kind(self.url_argument("kind")), "where": self.name}
        return _("Acknowledge: %(what)s, %(where)s") % words

    def preview(self, fields: dict[str, Any]) -> Preview:
        """Describe what acknowledging means. Raises Forbidden for who may not."""
        alarms.require_manage(self.actor, subject(self.url_argument("kind"), self.name))
        if self.url_argument("kind") in ONCE:
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
        alarms.acknowledge(kind=self.url_argument("kind"), name=self.name, actor=self.actor)
        return _("The alarm is acknowledged.")


class AcknowledgeAll(Action):
    """Acknowledge every active alarm that the person may acknowledge and that the preview
    named.
    """

    right = LOOK  # the verb asks for more, by what each alarm is about
    object_kind = "alarm"
    section = "alarms"
    title = lazy("Acknowledge all alarms")
    button = lazy("Acknowledge all")
    needs_right_on_all = True
    back_to = ("alarms",)
    form_class = ChosenAlarmsForm

    def get(self, request: HttpRequest, **words: Any) -> HttpResponse:
        chosen = alarms.acknowledgeable(actor=self.actor)
        if not chosen:
            raise NotFound(_("There is no active alarm that you may acknowledge."))
        return self._show_preview(ChosenAlarmsForm({"chosen": dumps(chosen)}))

    def preview(self, fields: dict[str, Any]) -> Preview:
        """Name the alarms. Raises Forbidden if one of them is not the person's to
        acknowledge.
        """
        for kind, name in fields["chosen"]:
            alarms.require_manage(self.actor, subject(kind, name))
        effects: list[Text] = [
            _(
                "Your name is shown with each alarm. "
                "The overview does not mention it until it is raised again."
            )
        ]
        named: list[Text] = [
            _("%(what)s: %(where)s") % {"what": cells.alarm_kind(kind), "where": name}
            for kind, name in fields["chosen"][:MAX_ALARMS_NAMED]
        ]
        more = len(fields["chosen"]) - MAX_ALARMS_NAMED
        if more > 0:
            named.append(
                ngettext("%s more alarm", "%s more alarms", more) % format_count(more)
            )
        if any(kind in ONCE for kind, _name in fields["chosen"]):
            effects.append(_("Alarms that report a past event end."))
        return Preview(effects=[*effects, *named])

    def run(self, fields: dict[str, Any]) -> Text:
        done = alarms.acknowledge_all(chosen=fields["chosen"], actor=self.actor)
        return ngettext(
            "%s alarm is acknowledged.", "%s alarms are acknowledged.", done
        ) % format_count(done)
