"""A group that falls behind is given each message about once, whatever waits in its retry
topic.
"""

from __future__ import annotations

import threading
import time
from contextlib import closing
from typing import Any

from catmq_client import NewMessage, Producer
from catmq_client.http.transport import HttpTransport
from tests.acceptance.scenarios.stage import Stage
from tests.support import slow_group

QUEUES = 4
BACKLOG = 4_000
SLOW_S = 0.25  # a message, in the long form
# In the short form one pull is answered while a handler is at work, and little is held.
HELD = 100


def run(stage: Stage, *, seconds: float) -> None:
    """Handles for so many seconds, at SLOW_S a message and thread."""
    end, pause = time.monotonic() + seconds, threading.Event()
    played = _played(
        stage, slow=lambda _: pause.wait(SLOW_S), is_over=lambda _: time.monotonic() >= end
    )
    stage.say(f"{played.handled} messages handled, {played.pulled} pulled")


def run_short(stage: Stage, *, handled: int) -> None:
    """Handles so many messages."""
    _played(
        stage,
        slow=lambda counted: counted.await_pulls(1),
        is_over=lambda count: count >= handled,
        max_poll_records=HELD,
    )


def _played(stage: Stage, **how: Any) -> slow_group.Outcome:
    topic, group = stage.fresh("slow"), stage.fresh("slow")
    stage.terminal.admin.create_topic(topic, queues=QUEUES)
    transport = HttpTransport(stage.urls or stage.server.url, api_key=stage.server.api_key)
    with closing(transport), Producer(transport=transport) as producer:
        producer.send_batch(
            topic, [NewMessage(b"%d" % n, key=f"k{n % 997}") for n in range(BACKLOG)]
        )
        played = slow_group.play(transport, group=group, topic=topic, **how)
    played.check()
    return played
