"""Alarms: active, resolved, and their acknowledgement."""

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
from metadata.errors import NotFound
from metadata.listing import operation_lists
from metadata.listing.operation_lists import AlarmRow
from metadata.monitoring import alarms, mails
from metadata.rules.alarm_rules import EVENT_KINDS, parse_subject
from metadata.rules.rights import Right
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

# Alarms named in the preview of an acknowledgement.
MAX_ALARMS_NAMED = 20
# Value of `?show=` → filter of the list.
LASTING_FILTERS: dict[str, bool | None] = {"lasting": True, "over": False, "all": None}


def alarms_list(request: HttpRequest) -> HttpResponse:
    """Show active alarms, resolved alarms, or both."""
    selected = request.GET.get("show", "lasting")
    selected = selected if selected in LASTING_FILTERS else "lasting"
    current_actor = actor(request)
    alarms_page = operation_lists.alarms(
        query=parse_list_query(request),
        actor=current_actor,
        lasting=LASTING_FILTERS[selected],
    )
    is_admin = may(request, Right.ADMIN)
    columns: Columns[AlarmRow] = [
        Column(
            _("State"),
            lambda row: (
                badge(_("resolved"), "ok")
                if row.ended_at_ms is not None
                else badge(_("active"), "warn" if row.acknowledged_by else "bad")
            ),
        ),
        Column(_("What"), lambda row: text(cells.alarm_kind(row.kind)), "kind"),
        Column(
            _("Where"), lambda row: cells.alarm_subject(row, administrator=is_admin), "name"
        ),
        Column(_("Detail"), lambda row: text(_alarm_detail(row))),
        Column(_("Times"), lambda row: number(row.times), right=True),
        Column(_("Since"), lambda row: timestamp(row.since_ms), "since"),
        Column(_("Until"), lambda row: timestamp(row.ended_at_ms)),
        Column(_("Acknowledged by"), lambda row: _acknowledged_by(row, current_actor)),
    ]
    labels = {"lasting": _("Active"), "over": _("Resolved"), "all": _("All")}
    filters = [
        Link(
            labels[filter_name],
            f"{page_url('alarms')}?show={filter_name}",
            "on" if filter_name == selected else "",
        )
        for filter_name in LASTING_FILTERS
    ]
    table = list_table(
        request,
        columns,
        alarms_page,
        empty=EmptyHint(_("No active alarms. A job checks every minute."))
        if selected == "lasting"
        else EmptyHint(_("No matching alarms")),
    )
    intro = _describe_mails() if is_admin else ""
    # The link is offered only if there is an alarm that the user may acknowledge.
    may_acknowledge = selected == "lasting" and alarms.list_acknowledgeable(
        actor=current_actor
    )
    actions = (
        [Link(_("Acknowledge all"), page_url("alarms-acknowledge"))]
        if may_acknowledge
        else []
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


def _describe_mails() -> str:
    """Describe the state of alarm mails, for administrators."""
    if not config.smtp_url:
        return _("Nobody is mailed: CATMQ_SMTP_URL is not set.")
    mail_state = mails.read_mail_state()
    # A configured server that refuses mails is the case to notice.
    if mail_state.waiting and mail_state.error:
        return _("%(count)d mails are waiting. The last attempt failed: %(why)s") % {
            "count": mail_state.waiting, "why": mail_state.error,
        }  # fmt: skip
    last_sent = format_time(mail_state.sent_at_ms)
    return _("%(count)d mails are waiting. The last one was sent at %(last)s.") % {
        "count": mail_state.waiting,
        "last": last_sent,
    }


def _alarm_detail(alarm: AlarmRow) -> str:
    detail = cells.alarm_detail(alarm)
    if not alarm.count:
        return detail
    return _("%(detail)s (%(count)s so far)") % {
        "detail": detail,
        "count": format_count(alarm.count),
    }


def _acknowledged_by(alarm: AlarmRow, current_actor: Actor) -> Cell:
    """Return who acknowledged an alarm, or a link to acknowledge it."""
    if alarm.acknowledged_by or alarm.ended_at_ms is not None:
        return text(alarm.acknowledged_by or None)
    if not alarms.may_manage(current_actor, parse_subject(alarm.kind, alarm.name)):
        return text(None)
    return text(_("acknowledge"), page_url("alarm-acknowledge", alarm.kind, alarm.name))


class ChosenAlarmsForm(forms.Form):
    """The alarms named in a preview.

    An alarm that is raised after the preview must not be acknowledged unseen.
    """

    chosen = forms.CharField(widget=forms.HiddenInput, max_length=500_000)

    def clean_chosen(self) -> list[tuple[str, str]]:
        try:
            pairs = [
                (str(kind), str(name)) for kind, name in loads(self.cleaned_data["chosen"])
            ]
        # The field is hidden, so only a manipulated form gets here.
        except (TypeError, ValueError):
            raise forms.ValidationError(
                _("This form has expired. Open its page again.")
            ) from None
        return pairs


class Acknowledge(Action):
    """Acknowledge an alarm."""

    # The verb requires more, depending on the object of the alarm.
    right = Right.LOOK
    object_kind = "alarm"
    section = "alarms"
    button = lazy("Acknowledge")
    needs_right_on_all = True
    back_to = ("alarms",)

    def heading(self) -> Text:
        values = {"what": cells.alarm_kind(self.url_argument("kind")), "where": self.name}
        return _("Acknowledge: %(what)s, %(where)s") % values

    def preview(self, fields: dict[str, Any]) -> Preview:
        """Describe the effect of the acknowledgement. Raises Forbidden."""
        alarms.require_manage(
            self.actor, parse_subject(self.url_argument("kind"), self.name)
        )
        if self.url_argument("kind") in EVENT_KINDS:
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
    """Acknowledge the active alarms that the preview named, as far as the user may."""

    # The verb requires more, depending on the object of each alarm.
    right = Right.LOOK
    object_kind = "alarm"
    section = "alarms"
    title = lazy("Acknowledge all alarms")
    button = lazy("Acknowledge all")
    needs_right_on_all = True
    back_to = ("alarms",)
    form_class = ChosenAlarmsForm

    def get(self, request: HttpRequest, **arguments: Any) -> HttpResponse:
        chosen = alarms.list_acknowledgeable(actor=self.actor)
        if not chosen:
            raise NotFound(_("There is no active alarm that you may acknowledge."))
        return self._show_preview(ChosenAlarmsForm({"chosen": dumps(chosen)}))

    def preview(self, fields: dict[str, Any]) -> Preview:
        """Name the alarms. Raises Forbidden if the user may not acknowledge all of them."""
        for kind, name in fields["chosen"]:
            alarms.require_manage(self.actor, parse_subject(kind, name))
        effects: list[Text] = [
            _(
                "Your name is shown with each alarm. "
                "The overview does not mention it until it is raised again."
            )
        ]
        alarm_names: list[Text] = [
            _("%(what)s: %(where)s") % {"what": cells.alarm_kind(kind), "where": name}
            for kind, name in fields["chosen"][:MAX_ALARMS_NAMED]
        ]
        omitted = len(fields["chosen"]) - MAX_ALARMS_NAMED
        if omitted > 0:
            alarm_names.append(
                ngettext("%s more alarm", "%s more alarms", omitted) % format_count(omitted)
            )
        if any(kind in EVENT_KINDS for kind, _name in fields["chosen"]):
            effects.append(_("Alarms that report a past event end."))
        return Preview(effects=[*effects, *alarm_names])

    def run(self, fields: dict[str, Any]) -> Text:
        count = alarms.acknowledge_all(chosen=fields["chosen"], actor=self.actor)
        return ngettext(
            "%s alarm is acknowledged.", "%s alarms are acknowledged.", count
        ) % format_count(count)
