"""A small run of the product without any fault, with journals as real processes write them.

Two queues on two nodes; a sender; two successive members of a group; a dead message, a
delayed message that was delivered and another that still waits; a send without a receipt.
It has everything that the judge of trials examines, so that a defect of each kind can be
planted in it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from messagestore.engine import batch_ids
from messagestore.engine.messages import NewMessage
from messagestore.pool import node_pools
from messagestore.produce.delayed_store import DelayedReceipt
from messagestore.produce.publish import Receipt, publish
from messagestore.retries import failures
from messagestore.retries.failures import Failure
from messagestore.topology import subscriptions, topics
from metadata import actors
from metadata.cache import snapshot
from metadata.groups import groups
from metadata.models import Queue
from tests.support import journal, moving, restoring, stored, tampering
from tests.support.instances import Instance
from tests.support.journal import Journal
from tests.support.verdicts import Evidence

ME = actors.command("test")
TOPIC, GROUP = "orders", "billing"
BATCHES, EACH = 6, 2  # for each queue
ON_A_NODE = ("queue_head", "reader", "sent_batch", "queue_gap")
_TIMES = {"asked": 0.0, "due": 0.0, "took_s": 0.0}
MEMBERS, SENDER, WATCHER = ("first", "second"), "sender", "watcher"


@dataclass
class CleanRun:
    """A run on existing nodes, including a failure node. `a` and `b` are its queues."""

    directory: Path
    numbers: int = 0
    # member → its epoch in both queues
    epochs: dict[str, int] = field(default_factory=dict)

    def play(self) -> None:
        """Play the run, and save all tables and journals."""
        self.directory.mkdir(parents=True, exist_ok=True)
        self.journals = {
            name: Journal(self.directory / f"{name}.jsonl")
            for name in (*MEMBERS, SENDER, WATCHER)
        }
        self._prepare()
        for _ in range(BATCHES):
            for queue in (self.a, self.b):
                self.send(queue)
        self._delay()
        self._work(MEMBERS[0], until=6)
        self._work(MEMBERS[1], until=BATCHES * EACH)
        self.send(self.b, has_receipt=False)
        for name, process_journal in self.journals.items():
            process_journal.tell("left", numbers=[0, self.numbers if name == SENDER else 0])
        self._tables = tampering.save(self._places())
        self._texts = {path: path.read_bytes() for path in self.directory.iterdir()}

    def restore(self) -> None:
        """Restore all tables and journals as they were after the run."""
        self._tables.put_back()
        for path, text in self._texts.items():
            path.write_bytes(text)
        node_pools.evict_all()
        restoring.evict_known_heads()

    def evidence(self) -> Evidence:
        """Return the judge's input, read from all files and tables as they are now."""
        read = {
            path.stem: journal.read(path) for path in sorted(self.directory.glob("*.jsonl"))
        }
        with ExitStack() as stack:
            a, b, failing = (
                stack.enter_context(tampering.looking(queue))
                for queue in (self.a, self.b, self.failing)
            )
            tables = stored.read([(a, [self.a]), (b, [self.b]), (failing, [])])
        members = {name: read[name] for name in MEMBERS}
        return Evidence(members, {SENDER: read[SENDER]}, {WATCHER: read[WATCHER]}, tables)

    def asking(self, queue: int) -> stored.Ask:
        """Return a function that runs a SELECT on a queue's node."""
        return lambda statement: tampering.look(queue, statement)

    def lines(self, name: str) -> list[dict[str, Any]]:
        """Return the lines of a journal."""
        return [json.loads(line) for line in self.path(name).read_text().splitlines()]

    def rewrite(self, name: str, lines: Sequence[dict[str, Any]]) -> None:
        """Replace the lines of a journal, numbered as if it had always been so."""
        texts = [json.dumps({**line, "n": number}) for number, line in enumerate(lines, 1)]
        self.path(name).write_text("".join(f"{text}\n" for text in texts))

    def path(self, name: str) -> Path:
        """Return the file of a journal."""
        return self.directory / f"{name}.jsonl"

    def send(self, queue: int, *, has_receipt: bool = True) -> None:
        """Send a batch to a queue, and record its receipts unless they shall be missing."""
        numbers = list(range(self.numbers, self.numbers + EACH))
        self.numbers += EACH
        batch_id, tell = batch_ids.new(), self.journals[SENDER].tell
        tell("asked", batch=str(batch_id), queue=queue, numbers=numbers)
        messages = [
            NewMessage(body=b"%d" % number, key="k", headers={"h": "1"}, queue=queue)
            for number in numbers
        ]
        fates = publish(topic=TOPIC, messages=messages, batch_id=batch_id, actor=ME)
        for number, fate in zip(numbers, fates, strict=True):
            assert isinstance(fate, Receipt), fate
            if has_receipt:
                tell("sent", queue=fate.queue, offset=fate.offset, number=number, **_TIMES)

    def _prepare(self) -> None:
        topics.create(name=TOPIC, queues=2, actor=ME)
        groups.create(name=GROUP, actor=ME)
        subscriptions.create(group=GROUP, topic=TOPIC, start="earliest", actor=ME)
        snapshot.refresh()
        rows = Queue.objects.filter(topic__name=TOPIC).order_by("number")
        self.a, self.b = rows.values_list("pk", flat=True)
        assert node_pools.node_of(self.a).info.id != node_pools.node_of(self.b).info.id

    def _delay(self) -> None:
        """Deliver a delayed message into queue a, and leave another waiting."""
        for delivers in (True, False):
            number, self.numbers = self.numbers, self.numbers + 1
            message = NewMessage(body=b"%d" % number, queue=self.a, delay_ms=moving.HOUR_MS)
            (fate,) = publish(topic=TOPIC, messages=[message], batch_id=None, actor=ME)
            assert isinstance(fate, DelayedReceipt), fate
            self.journals[SENDER].tell("delayed", number=number, id=fate.message_id)
            if delivers:
                moving.make_due(self.a)
                assert moving.mover(self.a).run_once() == 1

    def _work(self, name: str, until: int) -> None:
        """Join as a member, handle the messages below an offset, and leave."""
        member, tell = Instance(name, group=GROUP).join(), self.journals[name].tell
        starts = {queue: int(offset or 0) for queue, (_, offset) in member.take().items()}
        first_offsets = {queue: starts[queue] for queue in (self.a, self.b)}
        self.epochs[name] = member.owned[self.a]
        assert member.owned[self.a] == member.owned[self.b], (
            "defects are written for one epoch"
        )
        for queue in first_offsets:
            tell("gained", queue=queue, epoch=member.owned[queue])
        for queue, start in first_offsets.items():
            # The delayed message is the last message of queue a.
            end = until + (queue == self.a and name == MEMBERS[1])
            for offset in range(start, end):
                self._handle(name, member, queue, offset)
                assert member.commit(queue, offset + 1) == "ok"
                self._watch(queue)
        member.leave()

    def _handle(self, name: str, member: Instance, queue: int, offset: int) -> None:
        tell, epoch = self.journals[name].tell, member.owned[queue]
        (message, *_) = member.pull(queue, offset).messages
        details = {
            "queue": queue,
            "offset": offset,
            "epoch": epoch,
            "number": int(message.body),
        }
        tell("begin", wall=0.0, **details)
        if (name, queue, offset) == (MEMBERS[1], self.b, 8):
            report = failures.report(
                consumer=member.id, failures=[Failure(queue, epoch, offset, last=True)]
            )
            assert len(report.dead) == 1, report
            tell("dead", queue=queue, offset=offset)
            self.failing = int(
                Queue.objects.filter(topic__kind="failure").values_list("pk", flat=True)[0]
            )
        else:
            tell("end", wall=0.0, **details)

    def _watch(self, queue: int) -> None:
        """Record the reader and head rows of a queue."""
        ((epoch, committed, head),) = tampering.look(
            queue,
            "SELECT epoch, committed, head FROM reader JOIN queue_head USING (queue_id) "
            "WHERE queue_id = {q}",
        )
        self.journals[WATCHER].tell(
            "position", queue=queue, epoch=epoch, committed=committed, head=head
        )

    def _places(self) -> list[tuple[int, str]]:
        """Return the tables that a defect may change."""
        places = [
            (queue, table)
            for queue in (self.a, self.b)
            for table in (*ON_A_NODE, f"message_{queue}")
        ]
        return sorted(
            [*places, (self.a, "delayed_message"), (self.failing, "dead_message")]
        )
