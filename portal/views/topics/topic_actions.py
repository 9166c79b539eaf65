"""Actions on topics and their queues: create, change, expand, shrink, clean, delete, close."""

from __future__ import annotations

from typing import Any, ClassVar

from django import forms
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy as lazy

from messagestore import retention
from messagestore.retention.cleaning import Cleaned
from messagestore.topology import queues, topics
from messagestore.topology.queues import Change
from metadata.rules.setting_types import read_settings
from metadata.rules.settings import TOPIC
from metadata.rules.topics.states import QueueState
from metadata.topics import topic_rows
from metadata.topics.topic_rows import QueueView
from portal.actions.action import Action, Create, Delete, Preview
from portal.actions.edit import Edit, EditFields
from portal.actions.fields import pick_settings
from portal.actions.pickers import Picker
from portal.actions.toggle import Toggle
from portal.kit import cells
from portal.kit.setting_fields import with_settings
from portal.kit.tables import (
    Column,
    Columns,
    EmptyHint,
    Text,
    number,
    simple_table,
    text,
)


@with_settings(TOPIC)
class NewTopicForm(forms.Form):
    name = forms.CharField(
        label=lazy("Name"), max_length=100, help_text=lazy("Letters, digits, . _ -")
    )
    queues = forms.IntegerField(
        label=lazy("Queues"),
        min_value=1,
        initial=4,
        help_text=lazy(
            "The maximum number of consumers of a group that can share the work."
        ),
    )
    node = forms.CharField(
        label=lazy("Node"),
        required=False,
        widget=Picker("node"),
        help_text=lazy("Empty: spread over the nodes with the fewest queues."),
    )


@with_settings(TOPIC)
class EditTopicForm(EditFields):
    """Settings of an existing topic."""


class ExpandForm(forms.Form):
    queues = forms.IntegerField(label=lazy("Queues to add"), min_value=1, initial=1)
    node = forms.CharField(
        label=lazy("Node"),
        required=False,
        widget=Picker("node"),
        help_text=lazy("Empty: spread over the nodes with the fewest queues."),
    )


class ShrinkForm(forms.Form):
    count = forms.IntegerField(label=lazy("Queues to remove"), min_value=1, initial=1)


class TopicAction(Action):
    back_to = ("topic", "name")


class CreateTopic(Create):
    form_class = NewTopicForm
    title = lazy("Create a topic")
    back_to = ("topics",)

    def describe_effect(self, fields: dict[str, Any]) -> Text:
        nodes = fields["node"] or _("the nodes with the fewest queues")
        sentence = _(
            "Topic %(name)s will be created with %(queues)d queues on %(node)s. Each queue "
            "is a table."
        )
        return sentence % {
            "name": fields["name"],
            "queues": fields["queues"],
            "node": nodes,
        }

    def run(self, fields: dict[str, Any]) -> Text:
        topics.create(
            name=fields["name"],
            queues=fields["queues"],
            node=fields["node"] or None,
            settings=pick_settings(fields, TOPIC),
            actor=self.actor,
        )
        return _("Topic %s is ready.") % str(fields["name"])


class ChangeTopic(Edit, TopicAction):
    form_class = EditTopicForm
    title = lazy("Settings of %(name)s")

    def stored_settings(self) -> dict[str, Any]:
        return read_settings(TOPIC, topic_rows.find_topic(name=self.name, actor=self.actor))

    def save(self, changed: dict[str, Any]) -> None:
        topic_rows.update(name=self.name, settings=changed, actor=self.actor)


class ExpandTopic(TopicAction):
    form_class = ExpandForm
    title = lazy("Expand %(name)s")

    def preview(self, fields: dict[str, Any]) -> Preview:
        return _preview_change(self._expand(fields, dry_run=True), _("New queues"))

    def run(self, fields: dict[str, Any]) -> Text:
        change = self._expand(fields, dry_run=False)
        return _("%(count)d queues were added to %(name)s.") % {
            "count": len(change.queues),
            "name": self.name,
        }

    def _expand(self, fields: dict[str, Any], *, dry_run: bool) -> Change:
        return queues.expand(
            topic=self.name,
            queues=fields["queues"],
            node=fields["node"] or None,
            actor=self.actor,
            dry_run=dry_run,
        )


class ShrinkTopic(TopicAction):
    form_class = ShrinkForm
    danger = True
    title = lazy("Shrink %(name)s")

    def preview(self, fields: dict[str, Any]) -> Preview:
        change = queues.shrink(
            topic=self.name, count=fields["count"], actor=self.actor, dry_run=True
        )
        return _preview_change(
            change, _("Queues that close and are retired once every group has read them")
        )

    def run(self, fields: dict[str, Any]) -> Text:
        change = queues.shrink(topic=self.name, count=fields["count"], actor=self.actor)
        return _("%(count)d queues of %(name)s drain.") % {
            "count": len(change.queues),
            "name": self.name,
        }


def _preview_change(change: Change, caption: str) -> Preview:
    """Describe the keys that move to other queues, and the groups with unread messages
    there.
    """
    # Keys are spread over 1,024 slots, and a change of the layout moves some slots.
    effects = [
        _("%(share).1f %% of all keys move to another queue.")
        % {"share": 100 * change.moved_share}
    ]
    # A key's new queue may be read before its old queue, so order is lost until the old queue
    # is empty.
    effects += [
        _(
            "Group %(group)s has %(messages)s messages unread there: keys that move may "
            "come out of order."
        )
        % {"group": lag.group, "messages": "?" if lag.messages is None else lag.messages}
        for lag in change.unread
        if lag.messages != 0
    ]
    columns: Columns[QueueView] = [
        Column(_("Number"), lambda row: number(row.number), right=True),
        Column(_("Node"), lambda row: text(row.node)),
    ]
    return Preview(
        effects=effects,
        table=simple_table(columns, change.queues, EmptyHint(_("None.")), caption),
    )


class CleanTopic(TopicAction):
    """Deletes messages beyond the topic's retention."""

    danger = True
    button = lazy("Clean now")
    title = lazy("Clean %(name)s")

    def preview(self, fields: dict[str, Any]) -> Preview:
        # The same computation as the job's, without deleting.
        cleaned_queues = retention.clean(topic=self.name, actor=self.actor, dry_run=True)
        columns: Columns[Cleaned] = [
            Column(_("Queue"), lambda row: cells.queue(row.plan.queue)),
            Column(_("Log start offset"), lambda row: number(row.plan.low), right=True),
            Column(
                _("Log start offset then"),
                lambda row: number(row.plan.keep_from),
                right=True,
            ),
            Column(
                _("Messages to delete"),
                lambda row: number(max(0, row.plan.keep_from - row.plan.low)),
                right=True,
            ),
            Column(_("Limited by"), lambda row: text(row.problem or row.plan.blocked_by)),
        ]
        table = simple_table(columns, cleaned_queues, EmptyHint(_("Nothing to clean")))
        return Preview(effects=[_("Deleted messages cannot be restored.")], table=table)

    def run(self, fields: dict[str, Any]) -> Text:
        cleaned_queues = retention.clean(
            topic=self.name, actor=self.actor, pass_s=retention.PASS_S
        )
        cleaned_count = sum(
            bool(cleaned.raised or cleaned.dropped or cleaned.deleted)
            for cleaned in cleaned_queues
        )
        return _("%(count)d queues of %(name)s were cleaned.") % {
            "count": cleaned_count,
            "name": self.name,
        }


class DeleteTopic(Delete, TopicAction):
    title = lazy("Delete %(name)s")
    page_after = "topics"

    def preview(self, fields: dict[str, Any]) -> Preview:
        state = topics.describe(name=self.name, actor=self.actor)
        # A queue whose node does not answer counts as empty.
        message_count = sum((queue.head or 0) - (queue.low or 0) for queue in state.queues)
        sentence = _(
            "Topic %(name)s has %(queues)d queues and %(kept)d messages. Sends to it will "
            "be refused."
        )
        values = {"name": self.name, "queues": len(state.queues), "kept": message_count}
        return Preview(
            effects=[sentence % values, _("Its tables are dropped after three days.")]
        )

    def run(self, fields: dict[str, Any]) -> Text:
        topics.delete(name=self.name, confirm=fields["confirm"], actor=self.actor)
        return (
            _("Topic %s was deleted; its tables are dropped after three days.") % self.name
        )


class SetQueueState(Toggle, TopicAction):
    button: ClassVar[Text] = lazy("Confirm")

    def heading(self) -> Text:
        return _("Queue %s") % cells.queue_name(self.kwargs["queue"])

    def offered_state(self) -> str:
        view = topic_rows.find_topic(name=self.name, actor=self.actor)
        # The page offers the opposite of the state it shows.
        states = {queue.queue: queue.state for queue in view.queues}
        return (
            QueueState.READ_ONLY
            if states.get(self.kwargs["queue"]) == QueueState.READ_WRITE
            else QueueState.READ_WRITE
        )

    def preview(self, fields: dict[str, Any]) -> Preview:
        if fields["state"] == QueueState.READ_ONLY:
            return Preview(
                effects=[
                    _("The queue will be closed for sends. Its messages can still be read.")
                ]
            )
        return Preview(effects=[_("The queue will be opened and will accept sends again.")])

    def run(self, fields: dict[str, Any]) -> Text:
        change = queues.set_state(
            topic=self.name,
            queue=self.kwargs["queue"],
            state=fields["state"],
            actor=self.actor,
        )
        is_closed = change.queue.state == QueueState.READ_ONLY
        return _("The queue is closed for sends.") if is_closed else _("The queue is open.")
