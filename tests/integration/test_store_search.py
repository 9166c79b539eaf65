"""Looking for messages by what they carry, in chunks of a queue."""

from __future__ import annotations

import pytest

from messagestore.engine.messages import MessageSearch, NewMessage
from messagestore.inspect import search
from messagestore.inspect.search import SearchResult, TimeRange
from messagestore.pool import node_pools
from messagestore.produce.publish import publish
from messagestore.tables import message_sql, partition_sql, promotion_sql
from messagestore.topology import topics
from metadata.actors import Actor, command
from metadata.cache import snapshot
from metadata.errors import Forbidden, Invalid, NotFound
from metadata.rules.rights import Right

ACTOR = command("test")


@pytest.fixture
def queues(node: str) -> list[int]:
    """Two queues of the topic `orders`; the first holds 10 messages, the second 5, tags a
    and b in turn.
    """
    made = topics.create(name="orders", queues=2, actor=ACTOR)
    snapshot.refresh()
    ids = [one.queue.queue for one in made.queues]
    for queue, count in zip(ids, (10, 5), strict=True):
        messages = [
            NewMessage(
                body=b"\x00body %d\xff" % n,
                queue=queue,
                key=f"k{n}",
                tag="ab"[n % 2],
                trace_id=f"t{n}",
            )
            for n in range(count)
        ]
        publish(topic="orders", messages=messages, batch_id=None, actor=ACTOR)
    return ids


def look(
    wanted: MessageSearch = MessageSearch(),  # noqa: B008 - a constant
    times: TimeRange = TimeRange(),  # noqa: B008 - a constant
    **more: object,
) -> SearchResult:
    return search.search_messages(
        topic="orders", wanted=wanted, times=times, actor=ACTOR, **more
    )  # type: ignore[arg-type]


def places(found: SearchResult) -> list[tuple[int, int]]:
    return [(one.queue, one.offset) for one in found.messages]


def test_all_filters_hold_together_in_the_order_of_queues_and_offsets(
    queues: list[int],
) -> None:
    first, second = queues
    # A key is looked for in the queue that it maps to first.
    mapped = snapshot.find_topic("orders").queue_for("k3")
    in_order = sorted(queues, key=lambda queue: queue != mapped)
    assert places(look(MessageSearch(key="k3"))) == [(queue, 3) for queue in in_order]
    assert places(look(MessageSearch(tag="b", trace_id="t9"))) == [(first, 9)]
    assert places(look(MessageSearch(body_part=b"y 4\xff"))) == [(first, 4), (second, 4)]
    assert places(look(MessageSearch(key="k3"), queue=second)) == [(second, 3)]
    assert look(MessageSearch(key="nobody")) == SearchResult((), 15, None)
    assert look(MessageSearch(tag="nobody")) == SearchResult((), 15, None)


@pytest.mark.parametrize("limit", [1, 2, 3, 7])
@pytest.mark.parametrize("chunk", [1, 3, 100])
def test_no_message_is_left_out_or_found_twice_wherever_a_search_ends(
    queues: list[int], monkeypatch: pytest.MonkeyPatch, limit: int, chunk: int
) -> None:
    monkeypatch.setattr(search, "CHUNK", chunk)
    monkeypatch.setattr(search, "MAX_SCANNED", 4)
    found, scanned, after = [], 0, None
    for _ in range(40):
        part = look(MessageSearch(tag="a"), limit=limit, after=after)
        assert len(part.messages) <= limit
        found += places(part)
        scanned += part.scanned
        after = part.next
        if after is None:
            break

    first, second = queues
    assert found == [(first, n) for n in range(0, 10, 2)] + [
        (second, n) for n in range(0, 5, 2)
    ]
    assert scanned == 15


def test_times_bound_what_is_looked_at(queues: list[int]) -> None:
    with node_pools.node_of(queues[0]).reading() as session:
        at_ms = message_sql.read_stored_at_ms(session, queue=queues[0], offset=0)
    assert at_ms is not None
    assert look(times=TimeRange(to_ms=at_ms)) == SearchResult((), 0, None)
    assert len(look(times=TimeRange(from_ms=at_ms)).messages) == 15
    assert look(times=TimeRange(from_ms=at_ms + 3_600_000)) == SearchResult((), 0, None)


def test_what_retention_took_and_declared_gaps_are_stepped_over(
    queues: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = queues[0]
    with node_pools.node_of(queue).writing() as session:
        partition_sql.raise_low(session, queue=queue, low=4)
        promotion_sql.raise_heads(session, heads=[(queue, 5_000_000)], cause="test")
    monkeypatch.setattr(search, "MAX_SCANNED", 6)
    publish(
        topic="orders",
        messages=[NewMessage(body=b"new", queue=queue, tag="a")],
        batch_id=None,
        actor=ACTOR,
    )

    found = look(MessageSearch(tag="a"), queue=queue)

    assert places(found) == [(queue, 4), (queue, 6), (queue, 8)]
    assert places(look(MessageSearch(tag="a"), queue=queue, after=found.next)) == [
        (queue, 5_000_000)
    ]


def test_who_sees_only_the_outside_of_messages_does_not_search_what_they_say(
    queues: list[int],
) -> None:
    person = Actor(kind="user", name="eve", rights={Right.LOOK: ("*",)})

    def search_for(wanted: MessageSearch) -> SearchResult:
        return search.search_messages(
            topic="orders", wanted=wanted, times=TimeRange(), actor=person
        )

    assert search_for(MessageSearch(key="k3")).masked
    for wanted in (
        MessageSearch(body_part=b"body"),
        MessageSearch(header=("source", "web")),
    ):
        with pytest.raises(Forbidden):
            search_for(wanted)


def test_a_search_needs_the_right_to_browse_and_a_queue_of_the_topic(
    queues: list[int],
) -> None:
    stranger = Actor(kind="key", name="stranger", rights={"produce": ("*",)})
    with pytest.raises(Forbidden):
        search.search_messages(
            topic="orders", wanted=MessageSearch(key="a"), times=TimeRange(), actor=stranger
        )
    with pytest.raises(NotFound):
        look(MessageSearch(key="a"), queue=10**6)
    with pytest.raises(NotFound):
        look(MessageSearch(key="a"), after=f"{10**6}-1")
    with pytest.raises(Invalid):
        look(MessageSearch(key="a"), limit=0)


def test_a_header_is_found_by_name_and_value_wherever_it_stands_and_whatever_is_in_it(
    queues: list[int],
) -> None:
    odd = 'a "quoted" \\ päth, {x}'
    sent: list[dict[str, str] | None] = [
        {"h": odd},
        {"first": "1", "h": odd},
        {"h": odd + "longer"},
        {"other": f'"h":"{odd}"'},
        {"xh": odd},
        None,
    ]
    messages = [NewMessage(body=b"", queue=queues[0], headers=headers) for headers in sent]
    publish(topic="orders", messages=messages, batch_id=None, actor=ACTOR)
    assert places(look(MessageSearch(header=("h", odd)))) == [
        (queues[0], 10),
        (queues[0], 11),
    ]
    assert places(look(MessageSearch(header=("first", "1"), key="k1"))) == []


def test_chunks_shrink_while_they_are_slow_and_grow_again(queues: list[int]) -> None:
    one = search._Search(MessageSearch(), TimeRange(), 1)
    for took_s in (1.0, 1.0, 1.0, 1.0):
        one._adapt_chunk(took_s)
    assert one._chunk == search.MIN_CHUNK
    for _ in range(10):
        one._adapt_chunk(0.001)
    assert one._chunk == search.CHUNK
