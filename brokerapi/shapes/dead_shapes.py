"""Dead letters, redrives, and messages that wait for a retry."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import UNSET, Meta, UnsetType, field, structs

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
    DeadLetterDetail,
    DeadLetterInfo,
)
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


class WholeDeadAnswer(DeadLetterInfo, frozen=True, kw_only=True):
    """A dead letter with its content: `body` (text) or `body_base64`, `body_bytes` in
    MessagePack.
    """

    headers: dict[str, str] | None
    body: str | UnsetType = UNSET
    body_base64: bytes | UnsetType = UNSET
    body_bytes: bytes | UnsetType = UNSET


class DroppedAnswer(Answer):
    """Number of deleted dead letters."""

    dropped = Number()


# Without the positions of the redrive, and with its selection as two fields.
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


def dead_letter_answer(message: DeadLetterDetail, kind: formats.Format) -> WholeDeadAnswer:
    name, body = body_field(message.body, kind)
    content: dict[str, Any] = {"headers": message.headers, name: body}
    return WholeDeadAnswer(**structs.asdict(message.about), **content)


def redrive_answer(view: RedriveView) -> dict[str, Any]:
    return RedriveAnswer.from_view(
        view, topic=view.chosen.topic or None, error=view.chosen.error_class
    )
