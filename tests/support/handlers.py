"""The inner parts of Consumer.run(), without a consumer."""

from __future__ import annotations

from collections.abc import Callable

from catmq_client.message import Message
from catmq_client.reading.dispatcher import Dispatcher
from catmq_client.reading.failure_reports import Reporter
from catmq_client.reading.outcomes import Outcomes
from catmq_client.reading.state import GroupState
from catmq_client.reading.workers import Workers
from catmq_client.telemetry.traces import Traces
from catmq_client.testing import FakeBroker


def working(
    state: GroupState, handler: Callable[[Message], object], *, order: str, threads: int = 1
) -> tuple[Dispatcher, Workers]:
    """Return a dispatcher and the worker threads that take messages from it."""
    dispatcher = Dispatcher(state=state, order=order)
    reporter = Reporter(
        transport=FakeBroker(), state=state, handle_error=lambda error, consumer_id: False
    )
    workers = Workers(
        state=state,
        dispatcher=dispatcher,
        outcomes=Outcomes(
            state=state,
            dispatcher=dispatcher,
            reporter=reporter,
            traces=Traces(transport=FakeBroker(), consumer_id=lambda: None),
        ),
        handler=handler,
        threads=threads,
        batch=None,
    )
    return dispatcher, workers
