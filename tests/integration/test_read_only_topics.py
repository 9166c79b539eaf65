"""Sends to a read-only topic are refused; what was accepted before is answered and
delivered.
"""

from __future__ import annotations

import pytest

from messagestore.engine import batch_ids
from messagestore.engine.messages import NewMessage
from messagestore.produce.batch_plan import Part
from messagestore.produce.publish import FateRun, PartWriter, Receipt, publish
from messagestore.topology import topics
from metadata.actors import command
from metadata.cache import snapshot
from metadata.errors import Code, Conflict
from metadata.topics import topic_rows
from tests.support.moving import bodies, delay, make_due, mover

ACTOR = command("test")


def read_only(*, on: bool) -> None:
    topic_rows.update(name="orders", settings={"read_only": on}, actor=ACTOR)
    snapshot.refresh()


def test_sends_are_refused_and_nothing_is_stored(node: str) -> None:
    topics.create(name="orders", queues=2, actor=ACTOR)
    read_only(on=True)
    for message in (
        NewMessage(body=b"1"),
        NewMessage(body=b"2", key="k"),
        NewMessage(body=b"3", delay_ms=9),
    ):
        with pytest.raises(Conflict, match="Topic orders is read-only") as caught:
            publish(
                topic="orders", messages=[message], batch_id=batch_ids.new(), actor=ACTOR
            )
        assert caught.value.code == Code.TOPIC_READ_ONLY and not caught.value.retriable
    assert [state.head for state in topics.describe(name="orders", actor=ACTOR).queues] == [
        0,
        0,
    ]
    read_only(on=False)
    (receipt,) = publish(
        topic="orders", messages=[NewMessage(body=b"4")], batch_id=None, actor=ACTOR
    )
    assert receipt.offset == 0  # type: ignore[union-attr]


def test_a_repeat_of_what_was_stored_before_is_answered(node: str) -> None:
    """Else a client whose first answer was lost would take it for a failure."""
    topics.create(name="orders", queues=2, actor=ACTOR)
    messages = [NewMessage(body=b"%d" % n, key=f"k{n}") for n in range(8)]
    delayed, batch_id, other = (
        [NewMessage(body=b"later", delay_ms=60_000)],
        batch_ids.new(),
        batch_ids.new(),
    )
    first = publish(topic="orders", messages=messages, batch_id=batch_id, actor=ACTOR)
    waiting = publish(topic="orders", messages=delayed, batch_id=other, actor=ACTOR)
    read_only(on=True)
    assert (
        publish(topic="orders", messages=messages, batch_id=batch_id, actor=ACTOR) == first
    )
    assert publish(topic="orders", messages=delayed, batch_id=other, actor=ACTOR) == waiting


def test_a_repeat_of_a_batch_that_was_stored_in_part_tells_the_parts_apart(
    node: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The topic became read-only between two parts: a client must not send the stored one
    again.
    """
    topics.create(name="orders", queues=2, actor=ACTOR)
    queues = [one.queue.queue for one in topics.describe(name="orders", actor=ACTOR).queues]
    messages = [NewMessage(body=b"%d" % n, queue=queues[n % 2]) for n in range(4)]
    batch_id = batch_ids.new()
    store = PartWriter.store

    def first_part_only(self: PartWriter, part: Part) -> list[FateRun]:
        found = store(self, part)
        read_only(on=True)
        self.batch = self.batch._replace(topic=snapshot.find_topic("orders"))
        return found

    monkeypatch.setattr(PartWriter, "store", first_part_only)
    first = publish(topic="orders", messages=messages, batch_id=batch_id, actor=ACTOR)
    monkeypatch.undo()
    again = publish(topic="orders", messages=messages, batch_id=batch_id, actor=ACTOR)
    for fates in (first, again):
        assert [fates[0], fates[2]] == [Receipt(queues[0], 0), Receipt(queues[0], 1)]
        refused = {(type(one), getattr(one, "code", "")) for one in (fates[1], fates[3])}
        assert refused == {(Conflict, Code.TOPIC_READ_ONLY)}


def test_a_delayed_message_that_was_accepted_before_is_delivered(node: str) -> None:
    (state,) = topics.create(name="orders", queues=1, actor=ACTOR).queues
    queue = state.queue.queue
    delay("orders", b"later")
    read_only(on=True)
    make_due(queue)
    assert mover(queue).run_once() == 1 and bodies(queue) == [b"later"]
