"""The committed offset is never above the lowest unfinished message."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from catmq_client.message import Message, Source, make_row
from catmq_client.options import ConsumerOptions
from catmq_client.reading.clocks import lease_clock
from catmq_client.reading.committer import Committer
from catmq_client.reading.fetcher import Fetcher
from catmq_client.reading.owned import OwnedQueue
from catmq_client.reading.state import GroupState
from catmq_client.testing import FakeBroker
from tests.support.handlers import working
from tests.support.waiting import until


def message(offset: int, queue: int = 1, body: str = "x") -> Message:
    view: dict[str, Any] = {
        "offset": offset,
        "message_id": f"{queue}-{offset}",
        "stored_at_ms": 0,
        "body": body,
    }
    return Message(Source("t", queue, 1), make_row(view))


def owned(queue: int = 1, *, start: int = 0) -> OwnedQueue:
    made = OwnedQueue(topic="t", queue=queue, epoch=1, stopped=False)
    made.start_at(start)
    return made


def state_with(*queues: OwnedQueue, **options: Any) -> GroupState:
    state = GroupState(ConsumerOptions(**options))
    state.lease_until = lease_clock() + 60
    for queue in queues:
        state.add(queue)
    # One thread plays all parts here; the state's methods expect their caller to hold its
    # lock.
    state.changed.acquire()
    return state


@given(data=st.data(), count=st.integers(1, 30))
def test_whatever_order_handlers_end_in_commits_rise_and_stay_below_the_unfinished(
    data: Any, count: int
) -> None:
    queue = owned(start=5)
    # Offsets with holes, as tag filters leave them.
    gaps = data.draw(st.lists(st.integers(1, 3), min_size=count, max_size=count))
    offsets = [5 + sum(gaps[:n]) for n in range(count)]
    queue.buffer.extend(message(offset) for offset in offsets)
    queue.position = offsets[-1] + 1
    unfinished = set(offsets)
    waiting: list[int] = []
    last = queue.committable()
    while unfinished:
        if queue.buffer and (not waiting or data.draw(st.booleans())):
            waiting.append(queue.hand_out(1)[0].offset)
        else:
            done = waiting.pop(data.draw(st.integers(0, len(waiting) - 1)))
            queue.finish(done, 0)
            unfinished.discard(done)
        now = queue.committable()
        assert last <= now <= min(unfinished, default=queue.position)
        last = now
    assert last == queue.position


def test_what_was_handed_out_before_a_seek_no_longer_counts() -> None:
    queue = owned()
    queue.buffer.extend([message(0), message(1)])
    queue.position = 2
    (first,) = queue.hand_out(1)
    version = queue.version
    queue.seek(50)
    queue.finish(first.offset, version)
    assert (queue.committable(), queue.next_offset, queue.unfinished) == (50, 50, 0)


def test_a_dropped_buffer_is_fetched_again_from_the_first_message_not_handed_out() -> None:
    queue = owned()
    queue.buffer.extend(message(n) for n in range(5))
    queue.position = 5
    queue.hand_out(1)
    queue.evict()
    assert queue.position == 1
    assert queue.committable() == 0


def test_queues_have_their_turn() -> None:
    busy, quiet = owned(1), owned(2)
    state = state_with(busy, quiet)
    state.fill(busy, [message(n) for n in range(500)], 500)
    state.fill(quiet, [message(0, 2)], 1)
    taken = [queue.queue for queue, _ in state.hand_out(150)]
    assert taken.count(2) == 1
    assert len(taken) == 150
    assert state.buffered == 351


def test_nothing_is_handed_out_without_a_lease() -> None:
    queue = owned()
    state = state_with(queue)
    state.fill(queue, [message(0)], 1)
    state.lease_until = lease_clock() - 1
    assert state.hand_out(1) == []
    state.lease_until = lease_clock() + 60
    assert len(state.hand_out(1)) == 1


def test_paused_halted_and_revoked_queues_give_nothing() -> None:
    queue = owned()
    state = state_with(queue)
    state.fill(queue, [message(0)], 1)
    for name in ("paused", "halted"):
        setattr(queue, name, True)
        assert state.hand_out(1) == []
        setattr(queue, name, False)
    state.revoke(queue)
    assert state.hand_out(1) == []


def test_queues_on_their_way_to_others_come_back_in_their_epoch_unless_a_broker_may_know() -> (
    None
):
    leaving, gone, known = owned(1), owned(2), owned(3)
    state = state_with(leaving, gone, known)
    for queue in (leaving, gone, known):
        state.revoke(queue)
    state.release(gone)
    state.release(known)
    del state.unrecorded_releases[3, known.epoch]  # what an answer, or none, does

    state.reclaim_all()

    assert state.queues.keys() == {1, 2}
    assert state.queues[1] is leaving and leaving.revoked_until is None
    assert (state.queues[2].epoch, state.queues[2].acquired) == (gone.epoch, False)
    assert state.released == {(3, known.epoch)}
    assert not state.unrecorded_releases


def test_a_revoked_queue_that_comes_back_repeats_its_unfinished_messages() -> None:
    queue = owned()
    state = state_with(queue)
    state.has_worker_threads = True
    state.fill(queue, [message(n) for n in range(3)], 3)
    for _, taken in state.hand_out(3):
        if taken.offset != 1:
            queue.finish(taken.offset, 0)
    state.revoke(queue)
    state.reclaim(queue)
    assert queue.position == 1
    assert queue.revoked_until is None


def test_message_gives_text_json_and_time() -> None:
    view = {
        "offset": 1,
        "message_id": "1-1",
        "stored_at_ms": 1_000,
        "body_base64": "eyJhIjoxfQ==",
    }
    made = Message(Source("t", 1, 2), make_row(view))
    assert (made.text, made.json(), made.headers) == ('{"a":1}', {"a": 1}, {})
    assert made.stored_at.isoformat() == "1970-01-01T00:00:01+00:00"
    assert repr(made) == "Message(t 1-1, key=None, 7 bytes)"


def running(*queues: OwnedQueue, **options: Any) -> tuple[GroupState, Fetcher]:
    state = state_with(*queues, **options)
    state.has_worker_threads = True
    state.consumer_id = "me"
    broker = FakeBroker()
    return state, Fetcher(
        transport=broker,
        state=state,
        handle_error=lambda error, consumer_id: False,
        committer=Committer(transport=broker, state=state),
    )


def test_queues_of_which_nothing_is_held_are_asked_beside_a_full_buffer_which_is_kept() -> (
    None
):
    slow, quiet = owned(1), owned(2)
    state, fetcher = running(slow, quiet, max_poll_records=400)
    state.fill(slow, [message(n) for n in range(600)], 600)
    assert len(state.hand_out(400)) == 200
    plan = fetcher._plan()
    assert plan is not None
    assert [(queue.queue, offset) for queue, offset, _ in plan.queues] == [(2, 0)]
    assert (plan.wait_ms, plan.max_messages, state.buffered, slow.position) == (
        0,
        50,
        400,
        600,
    )
    state.fill(quiet, [message(n, queue=2) for n in range(50)], 50)
    assert fetcher._plan() is None
    assert len(state.hand_out(400)) == 50
    assert fetcher._plan() is None, (
        "it is not asked for more while its messages are at work"
    )
    for n in range(50):
        state.finish(quiet, n, 0)
    assert fetcher._plan() is not None
    assert (state.buffered, slow.position) == (400, 600)


def test_where_its_bytes_fill_the_buffer_a_part_of_them_is_asked_of_the_others() -> None:
    slow, quiet = owned(1), owned(2)
    state, fetcher = running(slow, quiet, max_poll_records=40, fetch_max_bytes=10_000)
    state.fill(slow, [message(n, body="x" * 1_000) for n in range(40)], 40)
    assert len(state.hand_out(40)) == 20
    plan = fetcher._plan()
    assert plan is not None
    assert ([queue.queue for queue, _, _ in plan.queues], plan.max_bytes) == ([2], 5_000)
    assert (state.buffered, slow.position) == (20, 40)


def test_what_is_at_the_handlers_of_a_slow_group_is_held_too() -> None:
    slow = owned(1)
    state, fetcher = running(slow, max_poll_records=400)
    state.fill(slow, [message(n) for n in range(400)], 400)
    assert len(state.hand_out(400)) == 400 and not state.buffered
    for n in range(99):
        slow.finish(n, 0)
    assert fetcher._plan() is None
    slow.finish(99, 0)
    plan = fetcher._plan()
    assert plan is not None and plan.max_messages == 100


def test_a_group_that_is_through_within_moments_asks_for_as_much_again() -> None:
    fast = owned(1)
    state, fetcher = running(fast, max_poll_records=400)
    state.fill(fast, [message(n) for n in range(400)], 400)
    assert len(state.hand_out(400)) == 400
    for n in range(50):
        state.finish(fast, n, 0)
    state.finished += 1_000_000
    plan = fetcher._plan()
    assert plan is not None and plan.max_messages == 400


def test_a_finished_message_is_known_by_the_time_its_queue_is_idle() -> None:
    queue = owned()
    state = state_with(queue)
    state.has_worker_threads = True
    state.fill(queue, [message(0)], 1)
    [(_, handed)] = state.hand_out(1)
    seen: list[int] = []

    class Watched(OwnedQueue):
        """Looks, whenever `at_work` falls, at what may be committed."""

        def __setattr__(self, name: str, value: Any) -> None:
            super().__setattr__(name, value)
            if name == "at_work" and value == 0:
                seen.append(self.committable())

    queue.__class__ = Watched
    state.changed.release()
    dispatcher, workers = working(state, lambda m: None, order="key")
    dispatcher.dispatch([(queue, handed)])
    until(lambda: seen)
    workers.drain(5.0)
    assert seen == [1]
