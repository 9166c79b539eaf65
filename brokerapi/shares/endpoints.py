"""Share groups: lease runs and report on them."""

from __future__ import annotations

from django.http import HttpResponse

from brokerapi.endpoint import Call, Endpoint
from brokerapi.http import metrics
from brokerapi.schema import operation
from brokerapi.shares import waiting
from brokerapi.shares.share_shapes import (
    DONE,
    RELEASE,
    SHARE,
    DoneAnswer,
    DoneRequest,
    ReleaseAnswer,
    ReleaseRequest,
    RunsAnswer,
    RunsQuery,
    ShareAnswer,
    ShareRequest,
    report_answers,
    runs_answer,
    share_answer,
)
from messagestore.shares import finishing, listing


class Share(Endpoint):
    @operation("share", tag="consumers", request=ShareRequest, answer=ShareAnswer)
    def post(self, call: Call, consumer: str) -> HttpResponse:
        """Leases messages to a member of a share group. Waits up to `wait_ms` for the first
        message.
        """
        member, asked = call.consumer_id(consumer), call.read(SHARE)
        reports = [one.to_report() for one in asked.done]
        answered = waiting.share_or_wait(
            consumer=member,
            wanted=asked.lease_request(),
            reports=reports,
            wait_ms=asked.wait_ms,
            has_hung_up=call.has_hung_up,
            address=call.actor.address,
        )
        call.check_key()
        metrics.count_pulled(member.group_id, answered.shared.runs)
        metrics.count_committed(member.group_id, answered.recorded)
        return call.answer(share_answer(asked, answered, call.kind))


class ShareDone(Endpoint):
    @operation("shareDone", tag="consumers", request=DoneRequest, answer=DoneAnswer)
    def post(self, call: Call, consumer: str) -> HttpResponse:
        """Reports on leased messages: finished, to be delivered again, or in work still.
        Idempotent.
        """
        member, asked = call.consumer_id(consumer), call.read(DONE)
        group = waiting.share_group(member)
        reports = [one.to_report() for one in asked.done]
        recorded = finishing.record(consumer=member, group=group, reports=reports)
        metrics.count_committed(member.group_id, recorded)
        answers = report_answers(asked.done, recorded)
        return call.answer(DoneAnswer(generation=group.generation, done=answers))


class Runs(Endpoint):
    @operation("listRuns", tag="groups", query=RunsQuery, answer=RunsAnswer)
    def get(self, call: Call, group: str) -> HttpResponse:
        """Leased messages of a share group: who has them, how often they were leased, until
        when.
        """
        found = listing.runs(group=group, actor=call.actor, **call.query_fields(RunsQuery))
        return call.answer(runs_answer(found))


class ReleaseRuns(Endpoint):
    @operation("releaseRuns", tag="groups", request=ReleaseRequest, answer=ReleaseAnswer)
    def post(self, call: Call, group: str) -> HttpResponse:
        """Ends leases, so that the messages are delivered to another member."""
        asked = call.read(RELEASE)
        count = listing.release(
            group=group, queue=asked.queue, first=asked.first, actor=call.actor
        )
        return call.answer(ReleaseAnswer(released=count))
