"""The document of an export, and the plan of an import."""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from brokerapi.shapes import base
from brokerapi.shapes.fields import Answer, Flag, Number, Request, Text, choice_of, views
from metadata.definitions.plans import Difference
from metadata.rules.definitions import PARTS, ExistingRule
from metadata.rules.groups.states import GroupMode, Start

MOST_BYTES = 8 << 20  # of an import
MOST_PARTS = 500_000  # values in it


class ExportQuery(base.Request, kw_only=True):
    """Topics to export, by a pattern such as `orders*`; with them go their subscriptions
    and groups.
    """

    topic: base.ShortText = "*"


class TopicDefinition(Answer):
    """A topic."""

    settings = PARTS["topics"].settings
    name = Text()
    queues = Number(required=False, help_text="number of queues (default 4)")


class GroupDefinition(Answer):
    """A group."""

    settings = PARTS["groups"].settings
    name = Text()
    mode = choice_of(GroupMode, required=False)


class SubscriptionDefinition(Answer):
    """A subscription."""

    settings = PARTS["subscriptions"].settings
    group = Text()
    topic = Text()
    start = choice_of(Start, required=False)


class Definitions(Answer):
    """Topics, groups and subscriptions; settings that are missing have their defaults."""

    version = Number(help_text="version of the document, 1")
    topics = TopicDefinition(many=True, required=False)
    groups = GroupDefinition(many=True, required=False)
    subscriptions = SubscriptionDefinition(many=True, required=False)


@extend_schema_field(Definitions)
class Document(serializers.JSONField):
    """A document; `metadata.rules.definitions` reads it, and names the place
    of an error.
    """


class ImportRequest(Request):
    """Definitions to import."""

    most_parts = MOST_PARTS
    document = Document(help_text="the answer of an export, or one written like it")
    existing = choice_of(
        ExistingRule,
        default=ExistingRule.REFUSE,
        help_text="what exists with other settings: refuse the import, keep them, or change them",
    )
    dry_run = Flag(default=False)


# The view has kind, name and place in the entry of the document.
class StepAnswer(Answer):
    """An entry of the document."""

    kind = Text(source="entry.kind", help_text="topic, group or subscription")
    name = Text(source="entry.name", help_text="name; of a subscription group/topic")
    outcome = Text(help_text="create, change, same, keep, conflict or unfinished")
    problem = Text(help_text="why it is a conflict or unfinished")
    differences = views(Difference, help_text="settings that differ from those there are")

    def get_fields(self) -> dict[str, Any]:
        """Return the fields by name. `place` is a method of the base, so it cannot be
        declared like the others.
        """
        place = Text(
            source="entry.path",
            help_text="where it stands in the document, such as topics[3]",
        )
        return {"place": place, **super().get_fields()}


class ImportAnswer(Answer):
    """Steps of an import, done or with `dry_run` planned."""

    dry_run = Flag()
    steps = StepAnswer(
        many=True, help_text="entries of the document, in the order in which they are made"
    )
