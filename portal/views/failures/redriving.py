"""Actions on dead letters: redrive, delete, mark as seen. Of some ids, of a kind, or of
all.
"""

from __future__ import annotations

from typing import Any

from django import forms
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy as lazy

from messagestore.retries import dead_letters, redrives
from messagestore.retries.dead_letters import DeadCount
from metadata.monitoring import dead_letter_counts
from portal.actions.action import NoFields, Preview
from portal.actions.pickers import Picker
from portal.kit.tables import Column, Columns, EmptyHint, Text, code, number, simple_table
from portal.views.groups.group_actions import GroupAction


class DeadLetterChoiceForm(forms.Form):
    """Dead letters to act on: ids, or those of a topic and error class, or all."""

    ids = forms.CharField(
        label=lazy("Messages"),
        required=False,
        help_text=lazy(
            "Ids of dead letters, separated by commas. Leave empty to use the fields below."
        ),
    )
    topic = forms.CharField(
        label=lazy("Topic"), required=False, max_length=210, widget=Picker("topic")
    )
    error = forms.CharField(label=lazy("Error class"), required=False, max_length=200)
    everything = forms.BooleanField(
        label=lazy("All dead letters of the group"), required=False
    )


class RedriveForm(DeadLetterChoiceForm):
    """Target and rate of a redrive."""

    to = forms.ChoiceField(
        label=lazy("To"),
        choices=(
            ("group", lazy("this group only, through its retry topic")),
            ("topic", lazy("the original topic, for all its groups")),
        ),
    )
    rate = forms.IntegerField(
        label=lazy("Maximum rate, messages/s"),
        required=False,
        min_value=1,
        help_text=lazy("Empty: 200."),
    )


def read_choice(fields: dict[str, Any]) -> dict[str, Any]:
    """Return the chosen dead letters as arguments of the verbs."""
    ids = fields["ids"].replace(",", " ").split()
    return {
        "ids": ids or None,
        "topic": fields["topic"] or None,
        "error": fields["error"] or None,
        "everything": fields["everything"],
    }


def _describe_choice(choice: dict[str, Any]) -> str:
    """Describe the chosen dead letters in words."""
    if choice["topic"] and choice["error"]:
        return str(_("Dead letters of topic %(topic)s with error %(error)s.") % choice)
    if choice["topic"]:
        return str(_("Dead letters of topic %(topic)s, with any error.") % choice)
    if choice["error"]:
        return str(_("Dead letters with error %(error)s, of all topics.") % choice)
    return str(_("All dead letters, of all topics and errors."))


class DeadLetterAction(GroupAction):
    """Base of actions on dead letters of a group."""

    back_to = ("failures", "name")

    # Each checkbox of the list sends a parameter `ids`.
    def initial(self) -> dict[str, Any]:
        ids = self.request.GET.getlist("ids")
        return {**super().initial(), "ids": ", ".join(ids)}

    def describe_choice(self, fields: dict[str, Any], sentence: str) -> Preview:
        choice = read_choice(fields)
        # Raises Invalid for an empty or contradictory choice, before any node is read.
        dead_letters.check_choice(**choice)
        # Ids are counted without reading the nodes.
        if choice["ids"]:
            # Raises Invalid for an id that names no message.
            dead_letters.rows_by_node(choice["ids"])
            return Preview(
                effects=[sentence % {"count": len(set(choice["ids"])), "group": self.name}]
            )
        summary = dead_letters.summary(
            group=self.name, topic=choice["topic"], actor=self.actor
        )
        matching = [
            error_count
            for error_count in summary.errors
            if choice["error"] in (None, error_count.error_class)
        ]
        columns: Columns[DeadCount] = [
            Column(_("Error"), lambda row: code(row.error_class)),
            Column(_("Topic"), lambda row: code(row.topic)),
            Column(_("Dead letters"), lambda row: number(row.count), right=True),
        ]
        table = simple_table(columns, matching, EmptyHint(_("No matching dead letters")))
        message_count = sum(error_count.count for error_count in matching)
        effects = [
            sentence % {"count": message_count, "group": self.name},
            _describe_choice(choice),
        ]
        return Preview(effects=effects, table=table)


class Redrive(DeadLetterAction):
    form_class = RedriveForm
    button = lazy("Redrive")
    title = lazy("Redrive dead letters of %(name)s")

    def preview(self, fields: dict[str, Any]) -> Preview:
        return self.describe_choice(
            fields, _("Dead letters of group %(group)s that are redriven: %(count)d.")
        )

    def run(self, fields: dict[str, Any]) -> Text:
        """Request the redrive. A broker carries it out step by step."""
        redrives.request(
            group=self.name,
            to=fields["to"],
            rate=fields["rate"],
            actor=self.actor,
            **read_choice(fields),
        )
        return _("The redrive has started. Its progress is shown below.")


class DeleteDeadLetters(DeadLetterAction):
    form_class = DeadLetterChoiceForm
    danger = True
    button = lazy("Delete for good")
    title = lazy("Delete dead letters of %(name)s")

    def preview(self, fields: dict[str, Any]) -> Preview:
        return self.describe_choice(
            fields,
            _("Dead letters of group %(group)s that are deleted for good: %(count)d."),
        )

    def run(self, fields: dict[str, Any]) -> Text:
        count = dead_letters.drop(group=self.name, actor=self.actor, **read_choice(fields))
        return _("Dead letters deleted: %d.") % count


class MarkDeadLettersSeen(DeadLetterAction):
    """Marks dead letters as seen. The overview is quiet until there is a new dead letter."""

    form_class = NoFields
    button = lazy("Mark as seen")
    title = lazy("Mark the dead letters of %(name)s as seen")
    effect = lazy(
        "The dead letters are kept. The overview does not mention them until there is a new one."
    )

    def initial(self) -> dict[str, Any]:
        return {}

    def run(self, fields: dict[str, Any]) -> Text:
        dead_letter_counts.mark_seen(group=self.name, actor=self.actor)
        return _("The dead letters are marked as seen.")
