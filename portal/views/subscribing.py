"""Subscriptions of a group: made, stopped and started, ended."""

from __future__ import annotations

from typing import Any

from django import forms
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy as lazy

from messagestore import subscriptions
from metadata import subscriptions as subscription_rows
from portal.actions import NoFields, Preview
from portal.fields import changes, given
from portal.tables import Text
from portal.views.group_actions import GroupAction


class Subscribing(forms.Form):
    """A topic to read."""

    topic = forms.CharField(label=lazy("Topic"), max_length=100)
    start = forms.ChoiceField(
        label=lazy("From"),
        choices=(("earliest", lazy("the earliest message")), ("latest", lazy("what comes from now on"))),
    )


class SubscriptionSettings(forms.Form):
    """Which of a subscription is read."""

    stopped = forms.BooleanField(label=lazy("Stop reading this topic"), required=False)
    stopped_queues = forms.CharField(
        label=lazy("Queues not to read"), required=False, help_text=lazy("Ids, separated by commas.")
    )

    def clean_stopped_queues(self) -> list[int]:
        """The ids. Raises ValidationError."""
        words = self.cleaned_data["stopped_queues"].replace(",", " ").split()
        if not all(word.isascii() and word.isdigit() and len(word) < 19 for word in words):
            raise forms.ValidationError(_("Give ids of queues, separated by commas."))
        return sorted({int(word) for word in words})


class Subscribe(GroupAction):
    """Lets a group read a topic."""

    form_class = Subscribing

    def heading(self) -> Text:
        """The page's title."""
        return _("Let %s read a topic") % self.name

    def preview(self, fields: dict[str, Any]) -> Preview:
        """Where it begins."""
        late = fields["start"] == "latest"
        where = _("what comes from now on") if late else _("the earliest message that is kept")
        what = _("Group %(group)s reads %(topic)s, beginning with %(where)s.")
        return Preview(effects=[what % {"group": self.name, "topic": fields["topic"], "where": where}])

    def run(self, fields: dict[str, Any]) -> Text:
        """Subscribes it."""
        subscriptions.create(group=self.name, topic=fields["topic"], start=fields["start"], actor=self.actor)
        return _("Group %(group)s reads %(topic)s.") % {"group": self.name, "topic": fields["topic"]}


class ChangeSubscription(GroupAction):
    """Stops or starts reading of one topic, or of some of its queues."""

    form_class = SubscriptionSettings

    def heading(self) -> Text:
        """The page's title."""
        return _("%(group)s reading %(topic)s") % {"group": self.name, "topic": self.word("topic")}

    def initial(self) -> dict[str, Any]:
        """As it is."""
        view = subscription_rows.named(group=self.name, topic=self.word("topic"), actor=self.actor)
        return {"stopped": view.stopped, "stopped_queues": ", ".join(map(str, view.stopped_queues))}

    def preview(self, fields: dict[str, Any]) -> Preview:
        """What changes."""
        listed = {**fields, "stopped_queues": ", ".join(map(str, fields["stopped_queues"]))}
        return changes(SubscriptionSettings, self.initial(), listed)

    def run(self, fields: dict[str, Any]) -> Text:
        """Changes it."""
        topic = self.word("topic")
        subscription_rows.update(group=self.name, topic=topic, settings=given(fields), actor=self.actor)
        return _("What %(group)s reads of %(topic)s was changed.") % {"group": self.name, "topic": topic}


class Unsubscribe(GroupAction):
    """Ends a subscription."""

    form_class = NoFields
    danger = True
    button = lazy("Unsubscribe")

    def heading(self) -> Text:
        """The page's title."""
        return _("%(group)s reads %(topic)s no more") % {"group": self.name, "topic": self.word("topic")}

    def preview(self, fields: dict[str, Any]) -> Preview:
        """What would be forgotten."""
        return Preview(effects=[_("The positions of the group in this topic are forgotten for good.")])

    def run(self, fields: dict[str, Any]) -> Text:
        """Ends it."""
        topic = self.word("topic")
        subscriptions.delete(group=self.name, topic=topic, actor=self.actor)
        return _("Group %(group)s reads %(topic)s no more.") % {"group": self.name, "topic": topic}
