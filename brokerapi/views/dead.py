"""Dead messages of a group, redrives of them, and what waits for a retry."""

from __future__ import annotations

from django.http import HttpResponse

from brokerapi.endpoint import Call, Endpoint
from brokerapi.schema import operation, page_of
from brokerapi.shapes import dead_shapes
from brokerapi.shapes.base import NewestQuery
from brokerapi.shapes.dead_shapes import (
    DeadPageAnswer,
    DeadQuery,
    DeadSummaryAnswer,
    DroppedAnswer,
    DropQuery,
    FailedAnswer,
    FailedQuery,
    RedriveAnswer,
    RedriveCreate,
    SummaryQuery,
    WholeDeadAnswer,
)
from messagestore.retries import dead_letters, pending, redrives
from metadata import redrive_rows


class DeadMessages(Endpoint):
    """/groups/{group}/dead"""

    @operation("listDead", tag="failures", query=DeadQuery, answer=DeadPageAnswer)
    def get(self, call: Call, group: str) -> HttpResponse:
        """The messages of which no retry is left, the newest first."""
        asked = call.query(DeadQuery)
        page = dead_letters.page(
            group=group,
            topic=asked.topic,
            error=asked.error,
            after=asked.after,
            limit=asked.limit,
            actor=call.actor,
        )
        return call.answer(DeadPageAnswer.of(page))

    @operation("dropDead", tag="failures", query=DropQuery, answer=DroppedAnswer)
    def delete(self, call: Call, group: str) -> HttpResponse:
        """Drops dead messages for good: some, or all that match."""
        asked = call.query(DropQuery)
        count = dead_letters.drop(
            group=group,
            ids=asked.list_of_ids(),
            topic=asked.topic,
            error=asked.error,
            everything=asked.all,
            actor=call.actor,
        )
        return call.answer({"dropped": count})


class DeadSummary(Endpoint):
    """/groups/{group}/dead/summary"""

    @operation("countDead", tag="failures", query=SummaryQuery, answer=DeadSummaryAnswer)
    def get(self, call: Call, group: str) -> HttpResponse:
        """Count the dead messages by topic and kind of error."""
        asked = call.query(SummaryQuery)
        return call.answer(
            dead_shapes.summary(dead_letters.summary(group=group, topic=asked.topic, actor=call.actor))
        )


class DeadMessage(Endpoint):
    """/groups/{group}/dead/{message}"""

    @operation("showDead", tag="failures", answer=WholeDeadAnswer)
    def get(self, call: Call, group: str, message: str) -> HttpResponse:
        """A dead message with headers and body."""
        shown = dead_letters.show(group=group, message=message, actor=call.actor)
        return call.answer(dead_shapes.whole(shown, call.kind))


class RedriveDead(Endpoint):
    """/groups/{group}/dead/redrive"""

    @operation("redrive", tag="failures", request=RedriveCreate, answer=RedriveAnswer, status=201)
    def post(self, call: Call, group: str) -> HttpResponse:
        """Begins to bring dead messages back; it goes on in the background."""
        asked = call.fields(RedriveCreate, manages=("group", group))
        everything = asked.pop("all", False)
        made = redrives.request(group=group, everything=everything, actor=call.actor, **asked)
        return call.created(dead_shapes.redrive(made), "groups", group, "redrives", str(made.id))


class Redrives(Endpoint):
    """/groups/{group}/redrives"""

    @operation("listRedrives", tag="failures", query=NewestQuery, answer=page_of("redrives", RedriveAnswer))
    def get(self, call: Call, group: str) -> HttpResponse:
        """The redrives of a group, the newest first."""
        asked = call.query(NewestQuery)
        rows = redrive_rows.page(group=group, limit=asked.limit + 1, after=asked.after, actor=call.actor)
        shown = [dead_shapes.redrive(one) for one in rows[: asked.limit]]
        return call.answer({"redrives": shown, "next": shown[-1]["id"] if len(rows) > len(shown) else None})


class Redrive(Endpoint):
    """/groups/{group}/redrives/{redrive}"""

    @operation("showRedrive", tag="failures", answer=RedriveAnswer)
    def get(self, call: Call, group: str, redrive: int) -> HttpResponse:
        """A redrive and how far it is."""
        return call.answer(
            dead_shapes.redrive(redrive_rows.named(group=group, redrive=redrive, actor=call.actor))
        )

    @operation("stopRedrive", tag="failures", status=204)
    def delete(self, call: Call, group: str, redrive: int) -> HttpResponse:
        """Stops a redrive; what it has brought back stays so."""
        redrive_rows.stop(group=group, redrive=redrive, actor=call.actor)
        return call.done()


class Failed(Endpoint):
    """/groups/{group}/failed"""

    @operation("listFailed", tag="failures", query=FailedQuery, answer=FailedAnswer)
    def get(self, call: Call, group: str) -> HttpResponse:
        """The messages that wait for a retry, those that are due first."""
        asked = call.query(FailedQuery)
        found = pending.waiting(group=group, topic=asked.topic, limit=asked.limit, actor=call.actor)
        return call.answer(FailedAnswer.of(found))
