"""Share groups: lease runs, report on them, list and release them."""

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
    share_answer,
)
from messagestore.shares import finishing, listing


class Share(Endpoint):
    @operation("share", tag="consumers", request=ShareRequest, answer=ShareAnswer)
    def post(self, call: Call, consumer: str) -> HttpResponse:
        """Leases messages to a member of a share group. Waits up to `wait_ms` for the first
        message.
        """
        member, request = call.consumer_id(consumer), call.read(SHARE)
        reports = [report.to_report() for report in request.done]
        result = waiting.share_or_wait(
            consumer=member,
            request=request.lease_request(),
            reports=reports,
            wait_ms=request.wait_ms,
            has_hung_up=call.has_hung_up,
            address=call.actor.address,
        )
        # The key may have been deleted while the call waited.
        call.check_key()
        metrics.count_pulled(member.group_id, result.shared.runs)
        metrics.count_committed(member.group_id, result.recorded)
        return call.answer(share_answer(request, result, call.kind))


class ShareDone(Endpoint):
    @operation("shareDone", tag="consumers", request=DoneRequest, answer=DoneAnswer)
    def post(self, call: Call, consumer: str) -> HttpResponse:
        """Reports on leased messages: finished, to be delivered again, or in work still.
        Idempotent.
        """
        member, request = call.consumer_id(consumer), call.read(DONE)
        group = waiting.share_group(member)
        reports = [report.to_report() for report in request.done]
        recorded = finishing.record(consumer=member, group=group, reports=reports)
        metrics.count_committed(member.group_id, recorded)
        answers = report_answers(request.done, recorded)
        return call.answer(DoneAnswer(generation=group.generation, done=answers))


class Runs(Endpoint):
    @operation("listRuns", tag="groups", query=RunsQuery, answer=RunsAnswer)
    def get(self, call: Call, group: str) -> HttpResponse:
        """Leased messages of a share group: who has them, how often they were leased, until
        when.
        """
        leased_runs = listing.runs(
            group=group, actor=call.actor, **call.query_fields(RunsQuery)
        )
        return call.answer(RunsAnswer(runs=leased_runs.runs, away=sorted(leased_runs.away)))


class ReleaseRuns(Endpoint):
    @operation("releaseRuns", tag="groups", request=ReleaseRequest, answer=ReleaseAnswer)
    def post(self, call: Call, group: str) -> HttpResponse:
        """Ends leases, so that the messages are delivered to another member."""
        request = call.read(RELEASE)
        count = listing.release(
            group=group, queue=request.queue, first=request.first, actor=call.actor
        )
        return call.answer(ReleaseAnswer(released=count))
