"""Requests come from their view to the driver by a short way, and the page that draws the
ways is true.
"""

from __future__ import annotations

import io
import re
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from wsgiref.util import setup_testing_defaults

import msgspec
import pytest

from catmq_site.background import reporting
from catmq_site.wsgi import application
from messagestore.engine import batch_ids
from messagestore.heads import heads
from messagestore.produce import group_commit
from metadata import actors
from metadata.cache import snapshot
from metadata.users import api_keys
from tests.support import environment, tampering
from tests.support.broker import Broker
from tests.support.environment import ROOT
from tests.support.forms import browser, confirm, filled
from tests.support.members import Member, reader
from tests.support.tracing import Way, names, returns, ways_of
from tests.support.waiting import until

PAGE = ROOT / "docs/explanation/life-of-a-message.md"
MOST = 9
ENGINE = "messagestore.engine."


class Here(Broker):
    """A broker in the test's own thread: its requests pass the WSGI application, and no
    socket.
    """

    def ok(self, method: str, path: str, body: Any = None, **options: Any) -> Any:
        """The decoded answer of a request that must succeed."""
        data = msgspec.json.encode(body)
        environ: dict[str, Any] = {
            "REQUEST_METHOD": method,
            "PATH_INFO": f"/api/v1{path}",
            "CONTENT_TYPE": "application/json",
            "CONTENT_LENGTH": str(len(data)),
            "HTTP_AUTHORIZATION": f"Bearer {self.api_key}",
            "wsgi.input": io.BytesIO(data),
        }
        setup_testing_defaults(environ)
        status: list[str] = []
        content = b"".join(
            application(environ, lambda line, headers, *_: status.append(line))
        )  # type: ignore[arg-type, return-value]
        assert status[0] < "300", content
        return msgspec.json.decode(content) if content else None


@pytest.fixture
def here(node: str, failure_node: str) -> Here:
    """A broker with a node for messages and one for failed ones."""
    _, key = api_keys.create(
        name="test", rights={"admin": ["*"]}, actor=actors.command("test")
    )
    return Here("", key)


@pytest.fixture
def queue(here: Here) -> int:
    """The only queue of topic `single`, with some messages; the pool has an open
    connection.
    """
    made = here.ok("POST", "/topics", {"name": "single", "queues": 1})
    snapshot.refresh()
    for _ in range(3):
        send(here)
    return int(made["queues"][0]["queue"])


@pytest.fixture
def member(here: Here, queue: int) -> Member:
    """A member that has acquired the queue."""
    member = reader(here)
    member.pull(member.position(queue, 0))
    return member


def send(here: Here, **more: Any) -> Any:
    return here.ok("POST", "/topics/single/messages", {"messages": [{"body": "x", **more}]})


def on_nodes(call: Callable[[], object], *, below: str = "brokerapi/views/") -> list[Way]:
    """The ways of a request from its view to the driver of a message node."""
    ways = [way for way in ways_of(call, below=below) if way[-1][1].startswith(ENGINE)]
    assert ways, "it has to come to a node"
    return ways


def is_short(ways: list[Way]) -> None:
    for way in ways:
        way_text = "\n".join(names(way))
        assert returns(way) == [], way_text
        assert len(way) <= MOST, f"{len(way)} frames:\n{way_text}"


def test_a_send_comes_to_the_driver_by_a_short_way(here: Here, queue: int) -> None:
    is_short(on_nodes(lambda: send(here)))
    is_short(on_nodes(lambda: send(here, key="k", tag="t", headers={"a": "b"})))
    is_short(on_nodes(lambda: send(here, queue=queue)))


def test_a_send_that_is_repeated_or_delayed_is_short(here: Here, queue: int) -> None:
    body = {"messages": [{"body": "x"}], "batch_id": str(batch_ids.new())}
    for _ in range(2):
        is_short(on_nodes(lambda: here.ok("POST", "/topics/single/messages", body)))
    send(here, delay_ms=60_000)  # the first one makes sure of the table
    body["messages"] = [{"body": "x", "delay_ms": 60_000}]
    body["batch_id"] = str(batch_ids.new())
    for _ in range(2):
        is_short(on_nodes(lambda: here.ok("POST", "/topics/single/messages", body)))


def test_who_stores_for_all_that_waited_has_a_short_way(here: Here, queue: int) -> None:
    coalescer = group_commit.coalescer_of(queue)
    entered = threading.Event()

    def hold() -> None:
        with coalescer.turn(None):  # type: ignore[arg-type]
            entered.set()
            until(lambda: coalescer.waiting() == 1)

    with ThreadPoolExecutor(1) as pool:
        held = pool.submit(hold)
        assert entered.wait(20)
        is_short(on_nodes(lambda: send(here)))
        held.result(20)


def test_a_pull_comes_to_the_driver_by_a_short_way(member: Member, queue: int) -> None:
    at = member.position
    is_short(on_nodes(lambda: member.pull(at(queue, 0))))
    is_short(on_nodes(lambda: member.pull(at(queue, 3))))
    is_short(on_nodes(lambda: member.pull(at(queue, 3), wait_ms=1)))
    is_short(on_nodes(lambda: member.pull(at(queue, 99))))
    is_short(on_nodes(lambda: member.pull(at(queue, 0) | {"epoch": 99})))


def test_a_pull_that_has_to_make_sure_of_a_head_is_short(
    member: Member, queue: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heads.board, "shared", heads.SharedHeads())
    heads.board.evict_except(())
    is_short(on_nodes(lambda: member.pull(member.position(queue, 0))))


def test_a_pull_with_a_tag_filter_is_short(here: Here, queue: int) -> None:
    member = Member.join(here, "tagged", topics=["single"])
    here.ok("PATCH", "/groups/tagged/subscriptions/single", {"tags": "t"})
    snapshot.refresh()
    member.heartbeat()
    member.acquire()
    is_short(on_nodes(lambda: member.pull(member.position(queue, 0))))


def test_a_pull_that_meets_a_hole_is_short(member: Member, queue: int) -> None:
    tampering.remove(queue, 1)
    tampering.declare_gap(queue, 1, 2)
    is_short(on_nodes(lambda: member.pull(member.position(queue, 1))))


def test_a_pull_from_two_nodes_is_short(
    here: Here, queue: int, make_node: Callable[..., str]
) -> None:
    for name, node in (("double", "main"), ("triple", make_node("other"))):
        here.ok("POST", "/topics", {"name": name, "queues": 1, "node": node})
    member = Member.join(here, "both", topics=["double", "triple"])
    snapshot.refresh()
    for name in ("double", "triple"):
        here.ok("POST", f"/topics/{name}/messages", {"messages": [{"body": "x"}]})
    member.heartbeat()
    member.acquire()
    asked = [member.position(one, 0) for one in member.owned if one != queue]
    member.pull(*asked)
    is_short(on_nodes(lambda: member.pull(*asked)))


def test_a_commit_comes_to_the_driver_by_a_short_way(member: Member, queue: int) -> None:
    is_short(on_nodes(lambda: member.commit(member.position(queue, 1))))
    is_short(on_nodes(lambda: member.commit(member.position(queue, 99))))


def drawn(section: str) -> list[str]:
    """The hops of a section of the page, without the client's."""
    (text,) = re.findall(
        rf"^## {section}$(.*?)(?=^## |\Z)", PAGE.read_text(), re.MULTILINE | re.DOTALL
    )
    found = re.findall(r"^\| `([\w.<>]+)` \|", text, re.MULTILINE)
    return [
        name for name in found if not name.startswith(("catmq_client.", "spark_tasks."))
    ]


def is_drawn(section: str, ways: list[Way], *, verb: str) -> None:
    """The first way by a verb of `tables` is the one that the page draws, which is that on
    MariaDB.
    """
    way = next(names(way) for way in ways if f"messagestore.tables.{verb}" in names(way))
    hops = drawn(section)
    if environment.ENGINE == "sqlite" or environment.IS_MYSQL:
        hops, way = (
            [name for name in one if not re.search("mysql|sqlite|mariadb", name)]
            for one in (hops, way)
        )
    assert hops == way, f"{PAGE.name} draws another way under {section}"


def test_the_page_draws_the_ways_of_programs(
    here: Here, member: Member, queue: int
) -> None:
    is_drawn("Sending", on_nodes(lambda: send(here)), verb="message_sql.insert_messages")
    at = member.position
    is_drawn(
        "Pulling",
        on_nodes(lambda: member.pull(at(queue, 0))),
        verb="message_sql.read_positions_and_rows",
    )
    is_drawn(
        "Committing",
        on_nodes(lambda: member.commit(at(queue, 1))),
        verb="reader_sql.update_committed",
    )


def test_the_page_draws_the_way_of_an_action_in_the_portal(here: Here, queue: int) -> None:
    url = "/create/topic"
    ada = browser("ada", administrator=True)
    preview = filled(ada, url, name="other", queues="1", node="main")
    ways = on_nodes(lambda: confirm(ada, url, preview), below="portal/views/")
    is_drawn("Creating a topic in the portal", ways, verb="queue_sql.create_queue")


def test_the_page_draws_the_way_of_a_report(here: Here, queue: int) -> None:
    asked = {"name": "volume", "topic": "single", "days": 2, "engine": "direct"}
    ways = on_nodes(
        lambda: reporting.make_report(**asked, actor=actors.command("test")),
        below="catmq_site/background/",
    )  # type: ignore[arg-type]
    is_drawn("Reporting", ways, verb="queue_sql.read_head")
