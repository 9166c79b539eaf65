"""Consumers: join a group, stay in it, read, commit, leave."""

from __future__ import annotations

from django.http import HttpResponse
from msgspec import structs

from brokerapi.endpoint import Call, Endpoint
from brokerapi.http import draining, errors, longpoll, metrics
from brokerapi.schema import operation
from brokerapi.shapes import consumer_shapes
from brokerapi.shapes.consumer_shapes import (
    ACQUIRE,
    COMMIT,
    HEARTBEAT,
    PULL,
    REGISTER,
    AcquireAnswer,
    AcquireRequest,
    CommitAnswer,
    CommitRequest,
    HeartbeatAnswer,
    HeartbeatRequest,
    PullAnswer,
    PullRequest,
    RegisterRequest,
    delivery_settings,
)
from brokerapi.shapes.failure_shapes import (
    FAILURES,
    TRACES,
    FailuresRequest,
    TracesRequest,
)
from messagestore.consume import node_owners, positions
from messagestore.retries import failures
from messagestore.topology import membership
from metadata.errors import Unrecorded
from metadata.groups import handling_traces
from metadata.membership import consumers


class Consumers(Endpoint):
    @operation(
        "registerConsumer",
        tag="consumers",
        request=RegisterRequest,
        answer=membership.Joined,
        status=201,
    )
    def post(self, call: Call, group: str) -> HttpResponse:
        """Joins a group. All further calls use the consumer id of the answer. Idempotent."""
        request = call.read(REGISTER)
        # A draining broker accepts no new members. Its present members are still served.
        draining.check()
        settings = structs.asdict(request) | {"incarnation": str(request.incarnation)}
        registration = membership.join(
            group=group, address=call.actor.address, actor=call.actor, **settings
        )
        return call.created(registration, "consumers", registration.consumer_id)


class Consumer(Endpoint):
    @operation("leave", tag="consumers", status=204)
    def delete(self, call: Call, consumer: str) -> HttpResponse:
        """Leaves the group. The queues are assigned to other members at once."""
        consumers.leave(consumer=call.consumer_id(consumer), actor=call.actor)
        return call.no_content()


class Heartbeat(Endpoint):
    @operation(
        "heartbeat", tag="consumers", request=HeartbeatRequest, answer=HeartbeatAnswer
    )
    def post(self, call: Call, consumer: str) -> HttpResponse:
        """Reports owned queues. Returns assigned and revoked queues, when the heartbeat is
        recorded.
        """
        member, request = call.consumer_id(consumer), call.read(HEARTBEAT)
        owned = [(queue.queue, queue.epoch) for queue in request.owned]
        try:
            assignment = consumers.heartbeat(
                consumer=member,
                generation=request.generation,
                owned=owned,
                report=request.process_report(),
            )
        except Unrecorded as error:
            # The refusal has the queues that the member owns on the nodes: it may continue
            # with them while metadata is away.
            owned_queues = node_owners.owned(member)
            topics = consumer_shapes.topics_to_read(member.group_id, owned_queues)
            return errors.respond(
                error,
                assigned=consumer_shapes.assigned_answers(owned_queues),
                subscriptions=delivery_settings(member.group_id, topics),
            )
        return call.answer(consumer_shapes.heartbeat_answer(assignment, member.group_id))


class Acquire(Endpoint):
    @operation("acquire", tag="consumers", request=AcquireRequest, answer=AcquireAnswer)
    def post(self, call: Call, consumer: str) -> HttpResponse:
        """Acquires assigned queues on their nodes. Returns the committed offset of each."""
        member, request = call.consumer_id(consumer), call.read(ACQUIRE)
        # Members of share groups own no queues: they call `share` instead.
        positions.check_owns(member)
        acquired = positions.acquire(consumer=member, queues=request.claims())
        generation = positions.generation(consumer=member)
        return call.answer(AcquireAnswer(queues=acquired, generation=generation))


class Pull(Endpoint):
    @operation("pull", tag="consumers", request=PullRequest, answer=PullAnswer)
    def post(self, call: Call, consumer: str) -> HttpResponse:
        """Commits the offsets in `commit`, then reads messages from the given offsets. Waits
        up to `wait_ms` for the first message.
        """
        member, request = call.consumer_id(consumer), call.read(PULL)
        positions.check_owns(member)
        pulled = longpoll.pull_or_wait(
            consumer=member, parameters=request.parameters(), address=call.actor.address
        )
        # The key may have been deleted while the pull waited.
        call.check_key()
        metrics.count_pulled(member.group_id, pulled.queues)
        return call.answer(consumer_shapes.pull_answer(pulled, call.kind))


class Commit(Endpoint):
    @operation("commit", tag="consumers", request=CommitRequest, answer=CommitAnswer)
    def post(self, call: Call, consumer: str) -> HttpResponse:
        """Commits the next offset to read of each queue. Idempotent; a committed offset
        never decreases.
        """
        member, request = call.consumer_id(consumer), call.read(COMMIT)
        positions.check_owns(member)
        committed = positions.commit(consumer=member, offsets=request.positions())
        metrics.count_committed(member.group_id, committed)
        results = consumer_shapes.commit_results(committed)
        generation = positions.generation(consumer=member)
        return call.answer(CommitAnswer(results=results, generation=generation))


class Traces(Endpoint):
    @operation("reportTraces", tag="consumers", request=TracesRequest, status=204)
    def post(self, call: Call, consumer: str) -> HttpResponse:
        """Reports how sampled messages were handled. Reports above the limit are dropped; do not
        repeat a report.
        """
        member, request = call.consumer_id(consumer), call.read(TRACES)
        handling_traces.report(consumer=member, attempts=request.attempts())
        return call.no_content()


class Failures(Endpoint):
    @operation(
        "reportFailures", tag="consumers", request=FailuresRequest, answer=failures.Report
    )
    def post(self, call: Call, consumer: str) -> HttpResponse:
        """Reports failed messages for a later retry. Answers when the retries are stored.
        Idempotent.
        """
        member, request = call.consumer_id(consumer), call.read(FAILURES)
        report = failures.report(consumer=member, failures=request.failures())
        metrics.FAILURES.labels("retried").inc(len(report.retried))
        metrics.FAILURES.labels("dead").inc(len(report.dead))
        return call.answer(report)
