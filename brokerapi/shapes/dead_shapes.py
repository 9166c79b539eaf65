"""Dead letters, redrives, and messages that wait for a retry."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta
from rest_framework import serializers

from brokerapi.http import formats
from brokerapi.shapes.base import Request as Query
from brokerapi.shapes.fields import Answer, Flag, Number, Request, Text, body_of, texts
from messagestore.retries.dead_letters import DeadLetterDetail, Summary
from metadata.redrive_rows import RedriveView


class DeadQuery(Query, kw_only=True):
    """A page of dead messages, the newest first: of one topic, of one kind of error, behind `after`."""

    topic: str | None = None
    error: str | None = None
    after: str = ""
    limit: Annotated[int, Meta(ge=1, le=1000)] = 100


class SummaryQuery(Query, kw_only=True):
    """Of one topic, or of all."""

    topic: str | None = None


class FailedQuery(Query, kw_only=True):
    """Of one topic, or of all; those that are due first."""

    topic: str | None = None
    limit: Annotated[int, Meta(ge=1, le=1000)] = 100


class DropQuery(Query, kw_only=True):
    """Dead messages to drop: ids separated by commas, or a topic and a kind of error, or all."""

    ids: str | None = None
    topic: str | None = None
    error: str | None = None
    all: bool = False

    def list_of_ids(self) -> list[str] | None:
        """The ids one by one, None if none were given."""
        return None if self.ids is None else [one for one in self.ids.split(",") if one]


class RedriveCreate(Request):
    """Dead messages to redrive: some, those of a topic and a kind of error, or all; and the target."""

    ids = texts(required=False, allow_empty=False)
    topic = Text(required=False)
    error = Text(required=False, help_text="the kind, as lists show it")
    all = Flag(required=False)
    to = serializers.ChoiceField(
        choices=["group", "topic"],
        default="group",
        help_text="group: as a retry of this group; topic: sent anew, every group gets it",
    )
    rate = Number(required=False, help_text="messages a second; 200 unless given")


# Answers -----------------------------------------------------------------------------------------


class DeadAnswer(Answer):
    """A dead message; `topic`, `queue`, `offset`: where it was sent."""

    id = Text()
    topic = Text()
    queue = Number()
    offset = Number()
    key = Text(allow_null=True)
    tag = Text(allow_null=True)
    trace_id = Text(allow_null=True)
    attempts = Number(help_text="how often its handler failed")
    error_class = Text(help_text="the kind of its last error: what stands before the first colon")
    error: Any = Text(help_text="the last error")
    first_failed_at_ms = Number()
    died_at_ms = Number()
    size = Number(help_text="of the body, in bytes")


class WholeDeadAnswer(DeadAnswer):
    """A dead message with what it holds: `body` (text) or `body_base64`, `body_bytes` in MessagePack."""

    headers = serializers.DictField(child=Text(), allow_null=True)
    body = Text(required=False)
    body_base64 = Text(required=False)
    body_bytes = Text(required=False)


class DeadPageAnswer(Answer):
    """Dead messages, the newest first; `next`: what to ask after. `away`: nodes that did not answer."""

    messages = DeadAnswer(many=True)
    next = Text(allow_null=True)
    away = texts()


class DeadCountAnswer(Answer):
    """Number of a topic's dead messages that died of one kind of error."""

    topic = Text()
    error_class = Text()
    count = Number()
    first_at_ms = Number()
    last_at_ms = Number()


class DeadSummaryAnswer(Answer):
    """Counts by topic and kind of error, the largest first."""

    count = Number()
    errors: Any = DeadCountAnswer(many=True)
    away = texts()


class DroppedAnswer(Answer):
    """Number of dead messages that were dropped."""

    dropped = Number()


class RedriveAnswer(Answer):
    """A redrive: running, done, stopped or failed. `skipped` ones stay dead; `detail`: what holds it up."""

    id = Number()
    group = Text()
    topic = Text(allow_null=True)
    error = Text(allow_null=True)
    to = Text()
    rate = Number()
    state = Text()
    total = Number(help_text="dead messages that were meant when it was asked for")
    redriven = Number()
    skipped = Number()
    detail = Text()
    asked_by = Text()
    created_at_ms = Number()
    finished_at_ms = Number(allow_null=True)


class FailedMessageAnswer(Answer):
    """A message that waits for its retry; `topic`, `queue`, `offset`: where it was sent."""

    topic = Text()
    queue = Number()
    offset = Number()
    key = Text(allow_null=True)
    tag = Text(allow_null=True)
    attempt = Number(help_text="the retry that it waits for")
    error: Any = Text()
    first_failed_at_ms = Number()
    due_at_ms = Number()
    size = Number()


class FailedCountAnswer(Answer):
    """Number of a topic's messages that wait for their time, and of those that have come and are unread."""

    topic = Text()
    failure_topic = Text()
    waiting = Number()
    unread = Number()


class FailedAnswer(Answer):
    """Messages that wait for a retry."""

    topics = FailedCountAnswer(many=True)
    messages = FailedMessageAnswer(many=True)
    away = texts()


def whole(message: DeadLetterDetail, kind: formats.Format) -> dict[str, Any]:
    """Return a dead letter with headers and body."""
    name, body = body_of(message.body, kind)
    return {**DeadAnswer.of(message.about), "headers": message.headers, name: body}


def redrive(view: RedriveView) -> dict[str, Any]:
    """Return a redrive."""
    return RedriveAnswer.of(view, topic=view.chosen.topic or None, error=view.chosen.error_class)


def summary(found: Summary) -> dict[str, Any]:
    """Return the counts of dead letters."""
    return DeadSummaryAnswer.of(found, count=sum(one.count for one in found.errors))
