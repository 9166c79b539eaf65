"""A slow group on a real broker of two workers: what it pulls is not taken for what it gets
done.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from itertools import islice

import requests
from prometheus_client.parser import text_string_to_metric_families

from catmq_client import Consumer, HttpTransport, Producer
from catmq_client.admin.api import Admin
from tests.support.server import Server
from tests.support.waiting import until

SENT, DONE = 60, 20
SCRAPES = 30  # on connections of their own: both workers answer some


def scrape(server: Server) -> dict[str, float]:
    """Return what the broker says of group `slow`; log ends added up."""
    answer = requests.get(
        f"{server.url}/metrics", headers={"Connection": "close"}, timeout=10
    )
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(answer.text):
        for sample in family.samples:
            about_slow = sample.labels.get("group") == "slow"
            if about_slow or (
                sample.name == "catmq_topic_log_end_offset"
                and sample.labels["topic"] == "work"
            ):
                found[sample.name] = found.get(sample.name, 0) + sample.value
    return found


def steady(server: Server) -> dict[str, float]:
    """Return what it says as often as it is asked, once each worker has told the others its
    part.
    """

    def same() -> dict[str, float] | None:
        seen = {tuple(sorted(told(server).items())) for _ in range(SCRAPES)}
        return dict(seen.pop()) if len(seen) == 1 else None

    return until(same, limit_s=60)


def told(server: Server) -> dict[str, float]:
    """The same without what grows by itself."""
    return {
        name: value
        for name, value in scrape(server).items()
        if name != "catmq_group_lag_seconds"
    }


def ahead_of_its_work(admin: Admin) -> bool:
    """Return True once the broker tells that the group has handled some messages, and
    pulled more.
    """
    progress = admin.lag("slow")["progress"]
    return (
        progress is not None
        and 0 < (progress["handled_per_s"] or 0) < progress["pulled_per_s"]
    )


def test_a_slow_group_is_told_by_what_it_has_done(
    new_server: Callable[..., Server],
) -> None:
    server = new_server()
    client = {"urls": server.url, "api_key": server.api_key}
    admin = Admin(HttpTransport(server.url, api_key=server.api_key))
    admin.create_topic("work", queues=2)
    with Producer(**client) as producer:
        for number in range(SENT):
            producer.send_async("work", b"x", key=str(number))
    with Consumer(
        **client, group="slow", topics=["work"], enable_auto_commit=False
    ) as consumer:
        journal = [message.offset for message in islice(consumer, DONE)]
        consumer.commit()
        # within the minute that it tells of
        until(lambda: ahead_of_its_work(admin), limit_s=30)
        until(
            lambda: scrape(server).get("catmq_group_messages_handled_total") == DONE,
            limit_s=60,
        )
        until(
            lambda: scrape(server).get("catmq_group_lag_messages") == SENT - DONE,
            limit_s=60,
        )
        seen = steady(server)
        assert seen["catmq_group_messages_handled_total"] == len(journal) == DONE
        assert seen["catmq_group_messages_pulled_total"] > DONE, (
            "its buffer holds more than it has done"
        )
        assert seen["catmq_topic_log_end_offset"] == SENT
        assert seen["catmq_group_members"] == 1
        offsets = admin.lag("slow")
        assert sum(one["committed"] or 0 for one in offsets["queues"]) == DONE
        assert offsets["lag"] == seen["catmq_group_lag_messages"]

        first, *_others = workers = server.workers()
        os.kill(first, signal.SIGKILL)
        until(
            lambda: first not in server.workers() and len(server.workers()) == len(workers),
            limit_s=60,
        )
        until(lambda: told(server) == seen, limit_s=60)
        assert steady(server) == seen, "what an ended worker counted stays counted"
