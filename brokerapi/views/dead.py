"""Dead letters of a group, redrives of them, and messages that wait for a retry."""

from __future__ import annotations

from django.http import HttpResponse

from brokerapi.endpoint import Call, Endpoint
from brokerapi.schema import operation, page_of
from brokerapi.shapes import dead_shapes
from brokerapi.shapes.base import NewestQuery
from brokerapi.shapes.dead_shapes import (
    DeadQuery,
    DroppedAnswer,
    DropQuery,
    FailedQuery,
    RedriveAnswer,
    RedriveCreate,
    SummaryQuery,
    WholeDeadAnswer,
)
from messagestore.retries import dead_letters, pending, redrives
from messagestore.retries.dead_letters import DeadPage, Summary
from messagestore.retries.pending import PendingRetries
from metadata import redrive_rows


class DeadMessages(Endpoint):
    @operation("listDead", tag="failures", query=DeadQuery, answer=DeadPage)
    def get(self, call: Call, group: str) -> HttpResponse:
        """Dead letters, newest first."""
        page = dead_letters.page(
            group=group, actor=call.actor, **call.query_fields(DeadQuery)
        )
        return call.answer(page)

    @operation("dropDead", tag="failures", query=DropQuery, answer=DroppedAnswer)
    def delete(self, call: Call, group: str) -> HttpResponse:
        """Deletes dead letters for good: some, or all that match."""
        query = call.query_fields(DropQuery)
        ids = (
            None
            if query["ids"] is None
            else [message_id for message_id in query["ids"].split(",") if message_id]
        )
        count = dead_letters.drop(group=group, actor=call.actor, **query | {"ids": ids})
        return call.answer({"dropped": count})


class DeadSummary(Endpoint):
    @operation("countDead", tag="failures", query=SummaryQuery, answer=Summary)
    def get(self, call: Call, group: str) -> HttpResponse:
        """Count the dead letters by topic and kind of error."""
        summary = dead_letters.summary(
            group=group, actor=call.actor, **call.query_fields(SummaryQuery)
        )
        return call.answer(summary)


class DeadMessage(Endpoint):
    @operation("showDead", tag="failures", answer=WholeDeadAnswer)
    def get(self, call: Call, group: str, message: str) -> HttpResponse:
        """A dead letter with headers and body."""
        dead_letter = dead_letters.show(group=group, message=message, actor=call.actor)
        return call.answer(dead_shapes.dead_letter_answer(dead_letter, call.kind))


class RedriveDead(Endpoint):
    @operation(
        "redrive", tag="failures", request=RedriveCreate, answer=RedriveAnswer, status=201
    )
    def post(self, call: Call, group: str) -> HttpResponse:
        """Starts a redrive of dead letters, which runs in the background."""
        fields = call.read_fields(RedriveCreate, manages=("group", group))
        # `all` is a builtin of Python, so the layers below call it `everything`.
        everything = fields.pop("all", False)
        redrive = redrives.request(
            group=group, everything=everything, actor=call.actor, **fields
        )
        return call.created(
            dead_shapes.redrive_answer(redrive),
            "groups",
            group,
            "redrives",
            str(redrive.id),
        )


class Redrives(Endpoint):
    @operation(
        "listRedrives",
        tag="failures",
        query=NewestQuery,
        answer=page_of("redrives", RedriveAnswer),
    )
    def get(self, call: Call, group: str) -> HttpResponse:
        """The redrives of a group, newest first."""
        query = call.query(NewestQuery)
        # A row more than the page shows whether there is a next page.
        rows = redrive_rows.list_redrives(
            group=group, limit=query.limit + 1, after=query.after, actor=call.actor
        )
        page = [dead_shapes.redrive_answer(row) for row in rows[: query.limit]]
        return call.answer(
            {"redrives": page, "next": page[-1]["id"] if len(rows) > len(page) else None}
        )


class Redrive(Endpoint):
    @operation("showRedrive", tag="failures", answer=RedriveAnswer)
    def get(self, call: Call, group: str, redrive: int) -> HttpResponse:
        """A redrive and its progress."""
        return call.answer(
            dead_shapes.redrive_answer(
                redrive_rows.find_redrive(group=group, redrive=redrive, actor=call.actor)
            )
        )

    @operation("stopRedrive", tag="failures", status=204)
    def delete(self, call: Call, group: str, redrive: int) -> HttpResponse:
        """Stops a redrive. Messages that were already sent are not taken back."""
        redrive_rows.stop_redrive(group=group, redrive=redrive, actor=call.actor)
        return call.no_content()


class Failed(Endpoint):
    @operation("listFailed", tag="failures", query=FailedQuery, answer=PendingRetries)
    def get(self, call: Call, group: str) -> HttpResponse:
        """Messages that are waiting for a retry, ordered by the time when they are due."""
        retries = pending.waiting(
            group=group, actor=call.actor, **call.query_fields(FailedQuery)
        )
        return call.answer(retries)
