"""Consumers: join a group, stay in it, read, commit, leave."""

from __future__ import annotations

from django.http import HttpResponse
from msgspec import convert, structs

from brokerapi.endpoint import Call, Endpoint
from brokerapi.http import draining, errors, longpoll, metrics
from brokerapi.schema import operation
from brokerapi.shapes import consumer_shapes, failure_shapes
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
    RegisterAnswer,
    RegisterRequest,
    delivery_settings,
)
from brokerapi.shapes.failure_shapes import (
    FAILURES,
    TRACES,
    FailuresAnswer,
    FailuresRequest,
    TracesRequest,
)
from messagestore.consume import node_owners, positions
from messagestore.retries import failures
from messagestore.topology import membership
from metadata.db.consumer_ids import ConsumerId
from metadata.errors import Unrecorded
from metadata.groups import handling_traces
from metadata.membership import consumers


class Consumers(Endpoint):
    @operation(
        "registerConsumer",
        tag="consumers",
        request=RegisterRequest,
        answer=RegisterAnswer,
        status=201,
    )
    def post(self, call: Call, group: str) -> HttpResponse:
        """Joins a group. All further calls use the consumer id of the answer. Idempotent."""
        asked = call.read(REGISTER)
        draining.check()
        given = structs.asdict(asked) | {"incarnation": str(asked.incarnation)}
        joined = membership.join(
            group=group, address=call.actor.address, actor=call.actor, **given
        )
        answer = convert(joined, RegisterAnswer, from_attributes=True)
        return call.created(answer, "consumers", joined.consumer_id)


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
        member, asked = call.consumer_id(consumer), call.read(HEARTBEAT)
        owned = [(queue.queue, queue.epoch) for queue in asked.owned]
        try:
            told = consumers.heartbeat(
                consumer=member,
                generation=asked.generation,
                owned=owned,
                report=asked.process_report(),
            )
        except Unrecorded as error:
            return _by_the_nodes(member, error)
        return call.answer(consumer_shapes.heartbeat_answer(told, member.group_id))


def _by_the_nodes(member: ConsumerId, error: Unrecorded) -> HttpResponse:
    """The refusal of a heartbeat, with what the nodes say that its member owns."""
    owned = node_owners.owned(member)
    settings = delivery_settings(
        member.group_id, consumer_shapes.topics_to_read(member.group_id, owned)
    )
    return errors.respond(
        error, assigned=consumer_shapes.assigned_answers(owned), subscriptions=settings
    )


class Acquire(Endpoint):
    @operation("acquire", tag="consumers", request=AcquireRequest, answer=AcquireAnswer)
    def post(self, call: Call, consumer: str) -> HttpResponse:
        """Acquires assigned queues on their nodes. Returns the committed offset of each."""
        member, asked = call.consumer_id(consumer), call.read(ACQUIRE)
        positions.check_owns(member)
        acquired = positions.acquire(consumer=member, queues=asked.claims())
        return call.answer(
            consumer_shapes.acquire_answer(acquired, positions.generation(consumer=member))
        )


class Pull(Endpoint):
    @operation("pull", tag="consumers", request=PullRequest, answer=PullAnswer)
    def post(self, call: Call, consumer: str) -> HttpResponse:
        """Reads messages from the given offsets. Waits up to `wait_ms` for the first
        message.
        """
        member, asked = call.consumer_id(consumer), call.read(PULL)
        positions.check_owns(member)
        pulled = longpoll.pull_or_wait(
            consumer=member, asked=asked.parameters(), address=call.actor.address
        )
        call.check_key()
        metrics.count_pulled(member.group_id, pulled.queues)
        return call.answer(consumer_shapes.pull_answer(pulled, call.kind))


class Commit(Endpoint):
    @operation("commit", tag="consumers", request=CommitRequest, answer=CommitAnswer)
    def post(self, call: Call, consumer: str) -> HttpResponse:
        """Commits the next offset to read of each queue. Idempotent; a committed offset
        never decreases.
        """
        member, asked = call.consumer_id(consumer), call.read(COMMIT)
        positions.check_owns(member)
        committed = positions.commit(consumer=member, offsets=asked.positions())
        metrics.count_committed(member.group_id, committed)
        return call.answer(
            consumer_shapes.commit_answer(committed, positions.generation(consumer=member))
        )


class Traces(Endpoint):
    @operation("reportTraces", tag="consumers", request=TracesRequest, status=204)
    def post(self, call: Call, consumer: str) -> HttpResponse:
        """Reports how sampled messages were handled. What is too much is dropped; do not
        repeat a report.
        """
        member, asked = call.consumer_id(consumer), call.read(TRACES)
        handling_traces.report(consumer=member, attempts=asked.attempts())
        return call.no_content()


class Failures(Endpoint):
    @operation(
        "reportFailures", tag="consumers", request=FailuresRequest, answer=FailuresAnswer
    )
    def post(self, call: Call, consumer: str) -> HttpResponse:
        """Reports failed messages for a later retry. Answers when the retries are stored.
        Idempotent.
        """
        member, asked = call.consumer_id(consumer), call.read(FAILURES)
        report = failures.report(consumer=member, failures=asked.failures())
        metrics.FAILURES.labels("retried").inc(len(report.retried))
        metrics.FAILURES.labels("dead").inc(len(report.dead))
        return call.answer(failure_shapes.failures_answer(report))
