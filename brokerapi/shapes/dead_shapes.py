"""Dead letters, redrives, and messages that wait for a retry."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta, field
from rest_framework import serializers

from brokerapi.http import formats
from brokerapi.shapes.base import Request as Query
from brokerapi.shapes.fields import (
    Answer,
    Flag,
    Number,
    Request,
    Text,
    body_field,
    choice_of,
    texts,
)
from messagestore.retries.dead_letters import (
    DeadCount,
    DeadLetterDetail,
    DeadLetterInfo,
)
from messagestore.retries.pending import PendingRetry, RetryCount
from metadata.redrive_rows import RedriveView
from metadata.rules.groups.states import RedriveTarget


class DeadQuery(Query, kw_only=True):
    """A page of dead letters, newest first. Filters: topic, error, key. `after`: `next` of
    the previous page.

    With `key`, a page looks at 10,000 dead letters of each node. It may be empty while
    `next` is set.
    """

    topic: str | None = None
    error: str | None = None
    key: str | None = None
    after: str = ""
    limit: Annotated[int, Meta(ge=1, le=1000)] = 100


class SummaryQuery(Query, kw_only=True):
    """Of one topic, or of all."""

    topic: str | None = None


class FailedQuery(Query, kw_only=True):
    """Of one topic, or of all; ordered by due time."""

    topic: str | None = None
    limit: Annotated[int, Meta(ge=1, le=1000)] = 100


class DropQuery(Query, kw_only=True):
    """Dead letters to delete: ids separated by commas, or a topic and a kind of error, or
    all.
    """

    ids: str | None = None
    topic: str | None = None
    error: str | None = None
    everything: bool = field(name="all", default=False)


class RedriveCreate(Request):
    """Dead letters to redrive (some, those of a topic and a kind of error, or all), and the
    target.
    """

    ids = texts(required=False, allow_empty=False)
    topic = Text(required=False)
    error = Text(required=False, help_text="kind of error, as in lists")
    all = Flag(required=False)
    to = choice_of(
        RedriveTarget,
        default=RedriveTarget.GROUP,
        help_text="group: only to this group, as a retry; topic: to the topic and all its groups",
    )
    rate = Number(required=False, help_text="messages per second (default 200)")


# Answers
# -----------------------------------------------------------------------------------------


class DeadAnswer(Answer):
    """A dead letter; `topic`, `queue` and `offset` are those of the original message."""

    view = DeadLetterInfo
    view_fields = "id topic queue offset key tag trace_id first_failed_at_ms died_at_ms"
    attempts = Number(help_text="number of failures")
    error_class = Text(help_text="kind of its last error, the text before the first colon")
    error: Any = Text(help_text="the last error")
    size = Number(help_text="size of the body, bytes")


class WholeDeadAnswer(DeadAnswer):
    """A dead letter with its content: `body` (text) or `body_base64`, `body_bytes` in
    MessagePack.
    """

    headers = serializers.DictField(child=Text(), allow_null=True)
    body = Text(required=False)
    body_base64 = Text(required=False)
    body_bytes = Text(required=False)


class DeadPageAnswer(Answer):
    """Dead letters, newest first. `next`: `after` of the next page. `away`: nodes that did
    not answer.
    """

    messages = DeadAnswer(many=True)
    next = Text(allow_null=True)
    away = texts()


class DeadCountAnswer(Answer):
    """Number of a topic's dead letters with one kind of error."""

    view = DeadCount
    view_fields = "topic error_class count first_at_ms last_at_ms"


class DeadSummaryAnswer(Answer):
    """Counts by topic and kind of error, the largest first."""

    count = Number()
    errors: Any = DeadCountAnswer(many=True)
    away = texts()


class DroppedAnswer(Answer):
    """Number of deleted dead letters."""

    dropped = Number()


class RedriveAnswer(Answer):
    """A redrive (running, done, stopped, failed). `skipped`: left as dead letters.
    `detail`: pause reason.
    """

    view = RedriveView
    view_fields = (
        "id group to rate state redriven skipped detail asked_by "
        "created_at_ms finished_at_ms"
    )
    topic = Text(allow_null=True)
    error = Text(allow_null=True)
    total = Number(help_text="dead letters that matched at the time of the request")


class FailedMessageAnswer(Answer):
    """A message that is waiting for a retry; `topic`, `queue` and `offset` are those of the
    original.
    """

    view = PendingRetry
    view_fields = "topic queue offset key tag error first_failed_at_ms due_at_ms size"
    attempt = Number(help_text="number of the retry")


class FailedCountAnswer(Answer):
    """Number of a topic's retries that are not due yet, and of those that are due and
    unread.
    """

    view = RetryCount
    view_fields = "topic failure_topic waiting unread"


class FailedAnswer(Answer):
    """Messages that are waiting for a retry."""

    topics = FailedCountAnswer(many=True)
    messages = FailedMessageAnswer(many=True)
    away = texts()


def dead_letter_answer(message: DeadLetterDetail, kind: formats.Format) -> dict[str, Any]:
    name, body = body_field(message.body, kind)
    return {**DeadAnswer.from_view(message.about), "headers": message.headers, name: body}


def redrive_answer(view: RedriveView) -> dict[str, Any]:
    return RedriveAnswer.from_view(
        view, topic=view.chosen.topic or None, error=view.chosen.error_class
    )
