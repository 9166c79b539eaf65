"""Subscriptions of a group: create, change, end."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from django import forms
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy as lazy
from django.utils.translation import ngettext

from messagestore.inspect.tag_preview import TagMatches, tag_matches
from messagestore.topology import subscriptions
from metadata.db.clock import ms
from metadata.errors import Invalid
from metadata.groups import subscription_rows
from metadata.rules.groups.states import Start
from metadata.rules.settings import DELIVERY, SUBSCRIPTION
from portal.actions.action import NoFields, Preview
from portal.actions.edit import Edit, EditFields
from portal.actions.fields import shown_only_for, time_field
from portal.actions.pickers import Picker
from portal.kit.setting_fields import with_settings
from portal.kit.tables import Text
from portal.templatetags.formats import format_count
from portal.views.groups.group_actions import GroupAction


class SubscribeForm(forms.Form):
    topic = forms.CharField(label=lazy("Topic"), max_length=100, widget=Picker("topic"))
    start = forms.ChoiceField(
        label=lazy("From"),
        choices=(
            (Start.EARLIEST, lazy("the earliest message")),
            (Start.LATEST, lazy("what comes from now on")),
            ("time", lazy("a point in time")),
        ),
    )
    at = shown_only_for(time_field(help_text=lazy("For a point in time.")), "start", "time")


@with_settings(SUBSCRIPTION)
class SubscriptionForm(EditFields):
    """Settings of a subscription: which messages a group gets, when, and how it handles
    failures.
    """


class Subscribe(GroupAction):
    form_class = SubscribeForm
    title = lazy("Subscribe %(name)s to a topic")

    def preview(self, fields: dict[str, Any]) -> Preview:
        at_ms = _start_at_ms(fields)
        if at_ms is not None:
            time = f"{datetime.fromtimestamp(at_ms / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"
            start = _("what was stored at %s or later") % time
        elif fields["start"] == Start.LATEST:
            start = _("what comes from now on")
        else:
            start = _("the earliest message")
        text = _("Group %(group)s will read %(topic)s from %(where)s.")
        return Preview(
            effects=[text % {"group": self.name, "topic": fields["topic"], "where": start}]
        )

    def run(self, fields: dict[str, Any]) -> Text:
        at_ms = _start_at_ms(fields)
        # create() takes a time only with the start `earliest`.
        start = Start.EARLIEST if at_ms is not None else fields["start"]
        subscriptions.create(
            group=self.name,
            topic=fields["topic"],
            start=start,
            start_at_ms=at_ms,
            actor=self.actor,
        )
        return _("Group %(group)s reads %(topic)s.") % {
            "group": self.name,
            "topic": fields["topic"],
        }


def _start_at_ms(fields: dict[str, Any]) -> int | None:
    """Return the time from which the group reads, None for another start. Raises Invalid."""
    at: datetime | None = fields["at"]
    if fields["start"] != "time":
        return None
    if at is None:
        raise Invalid.field("at", _("Give a date and time."))
    return ms(at)


class ChangeSubscription(Edit, GroupAction):
    """Changes the settings of a subscription. Members apply them within a moment."""

    form_class = SubscriptionForm
    title = lazy("Subscription of %(name)s to %(topic)s")

    def stored_settings(self) -> dict[str, Any]:
        view = subscription_rows.find_subscription(
            group=self.name, topic=self.url_argument("topic"), actor=self.actor
        )
        # The view has the delivery settings in an object of their own.
        return {
            name: setting.kind.written(
                getattr(view.delivery if name in DELIVERY else view, name)
            )
            for name, setting in SUBSCRIPTION.items()
        }

    def preview(self, fields: dict[str, Any]) -> Preview:
        """Describe the changed settings, and how many recent messages a changed filter
        would match.
        """
        preview = super().preview(fields)
        merge = self._merge(fields)
        # Only these settings filter messages. Testing a filter reads messages from the nodes,
        # so it is done only if needed.
        if not {"tags", "headers"} & merge.changed.keys():
            return preview
        # The filter as it would be after the change.
        settings = {**merge.stored, **merge.changed}
        tags, headers = settings["tags"], settings["headers"]
        matches = _describe_matches(
            tag_matches(
                topic=self.url_argument("topic"),
                tags=tags,
                headers=headers,
                actor=self.actor,
            )
        )
        return replace(
            preview, effects=[*preview.effects, *matches.effects], warnings=matches.warnings
        )

    def save(self, changed: dict[str, Any]) -> None:
        topic = self.url_argument("topic")
        subscription_rows.update(
            group=self.name, topic=topic, settings=changed, actor=self.actor
        )

    def saved_message(self) -> Text:
        text: str = (
            _("The subscription of %(name)s to %(topic)s was changed.") % self.kwargs
        )
        return text


def _describe_matches(matches: TagMatches) -> Preview:
    """Describe how many of the newest messages a filter matches, and warn of nodes that did
    not answer.
    """
    silent_nodes = ", ".join(matches.away)
    # No message was tested, so nothing is known about the filter.
    if not matches.looked_at:
        if silent_nodes:
            text = _(
                "How many messages would match is not known. Nodes that do not answer: %s."
            )
            return Preview(warnings=[text % silent_nodes])
        return Preview(
            effects=[_("The topic has no messages yet, so the filter cannot be tested.")]
        )
    uncounted = _(
        "Messages of these nodes are not counted, because they do not answer: %s."
    )
    warnings: list[Text] = [uncounted % silent_nodes] if silent_nodes else []
    figures = {
        "looked": format_count(matches.looked_at),
        "matching": format_count(matches.matching),
    }
    if matches.matching:
        text = ngettext(
            "The last message would match.",
            "Of the last %(looked)s messages %(matching)s would match.",
            matches.looked_at,
        )
        return Preview(effects=[text % figures], warnings=warnings)
    text = ngettext(
        "The last message would not match. Messages that do not match are skipped and committed.",
        "None of the last %(looked)s messages would match. Messages that do not match are skipped "
        "and committed.",
        matches.looked_at,
    )
    return Preview(warnings=[text % figures, *warnings])


class Unsubscribe(GroupAction):
    form_class = NoFields
    danger = True
    button = lazy("Unsubscribe")
    title = lazy("Unsubscribe %(name)s from %(topic)s")
    effect = lazy("The group's offsets in this topic will be deleted for good.")

    def run(self, fields: dict[str, Any]) -> Text:
        topic = self.url_argument("topic")
        subscriptions.delete(group=self.name, topic=topic, actor=self.actor)
        return _("Group %(group)s no longer reads %(topic)s.") % {
            "group": self.name,
            "topic": topic,
        }
