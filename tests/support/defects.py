"""Defects to plant in a clean run, each with the kind and place that must be reported for
it.

`judge` is the kind that the judge of trials must report, `verify` the kind that `manage.py
verify` must report; None if only the journals show the defect. Every finding must be of
these kinds, or of the kinds in `also`, which follow from the defect.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tests.support import verdicts
from tests.support.clean_run import SENDER, WATCHER, CleanRun
from tests.support.planting import (
    FIRST,
    SECOND,
    append,
    body,
    cut_batch,
    cut_bytes,
    cut_lines,
    dead_again,
    edited,
    handled_by,
    later,
    lose_tail,
    not_reached,
    number_at,
    out_of_order,
    raw,
    receipt,
    seen,
    swap,
    swap_everywhere,
    waits_again,
    without,
)
from tests.support.tampering import plant

ANYTHING = tuple(verdicts.KINDS)  # an incomplete journal can lead to any finding


@dataclass(frozen=True)
class Defect:
    """A defect. `place` is part of the place that the judge reports."""

    name: str
    act: Callable[[CleanRun], object]
    judge: str
    place: str
    verify: str | None = None
    also: tuple[str, ...] = ()


IN_TABLES = (
    Defect(
        "acknowledged messages are missing at the end of a table that looks well in itself",
        lambda run: lose_tail(run, run.a, 10),
        *(
            "lost",
            "queue {a} offset 11",
            None,
            ("head_fell", "delayed_lost", "commit_fell"),
        ),
    ),
    Defect(
        "an acknowledged message is missing in the middle",
        raw("a", "DELETE FROM message_{q} WHERE msg_offset = 3"),
        *("hole", "queue {a} offset 3", "missing", ("lost", "batch_count")),
    ),
    Defect(
        "a message is stored twice in one queue",
        lambda run: append(run, run.a, number_at(run, run.a, 1)),
        *(
            "stored_twice",
            "queue {a} offset 1, queue {a} offset 13",
            None,
            ("stored_order",),
        ),
    ),
    Defect(
        "a message is stored in two queues",
        lambda run: append(run, run.b, number_at(run, run.a, 1)),
        *(
            "in_two_queues",
            "queue {a} offset 1, queue {b} offset 14",
            None,
            ("stored_order",),
        ),
    ),
    Defect(
        "two receipts' offsets hold each other's messages",
        lambda run: swap(run, run.a, 2, 3),
        *("other_body", "queue {a} offset 2", "batch_differs"),
        ("batch_differs", "handled_other", "stored_order"),
    ),
    Defect(
        "a body was altered",
        raw("a", f"UPDATE message_{{q}} SET body = {body('rust')} WHERE msg_offset = 4"),
        *(
            "altered",
            "queue {a} offset 4",
            "batch_differs",
            ("batch_differs", "handled_other"),
        ),
    ),
    Defect(
        "an offset lies below the log start offset",
        raw("a", "UPDATE queue_head SET low = 2 WHERE queue_id = {q}"),
        *("below_low", "queue {a} offset 1", None, ("batch_count",)),
    ),
    Defect(
        "the head is not above the last message",
        raw("b", "UPDATE queue_head SET head = head - 1 WHERE queue_id = {q}"),
        *("head_behind", "queue {b} offset 13", "head_behind", ("head_fell",)),
    ),
    Defect(
        "a message lies above the head",
        raw("b", "UPDATE message_{q} SET msg_offset = 17 WHERE msg_offset = 13"),
        *(
            "above_head",
            "queue {b} offset 17",
            "head_behind",
            ("hole", "batch_count", "unclaimed"),
        ),
    ),
    Defect(
        "the head is too high",
        raw("b", "UPDATE queue_head SET head = head + 2 WHERE queue_id = {q}"),
        *("hole", "queue {b} offset 15", "missing"),
    ),
    Defect(
        "the time of storing falls",
        lambda run: later(run, run.a, 5),
        *("time_falls", "queue {a} offset 6", "time_falls"),
    ),
    Defect(
        "a batch has the wrong digest",
        raw(
            "a",
            f"UPDATE sent_batch SET digest = X'{'7' * 32}' WHERE queue_id = {{q}} AND "
            "first_offset = 2",
        ),
        *("batch_differs", "queue {a} offset 2 … 3", "batch_differs"),
    ),
    Defect(
        "a batch claims more messages than it has, and those of the next one",
        raw(
            "a",
            "UPDATE sent_batch SET message_count = 3 WHERE queue_id = {q} AND first_offset = 2",
        ),
        *("batch_count", "queue {a} offset 4 … 5", "batch_overlap", ("batch_differs",)),
    ),
    Defect(
        "a batch claims messages that were never stored",
        raw(
            "b",
            "UPDATE sent_batch SET message_count = 9 WHERE queue_id = {q} AND first_offset = 12",
        ),
        *("batch_count", "queue {b} offset 12 … 20", "batch_outside"),
    ),
    Defect(
        "messages that no batch remembers",
        raw("a", "DELETE FROM sent_batch WHERE queue_id = {q} AND first_offset = 6"),
        *("unclaimed", "queue {a} offset 6", "unclaimed"),
    ),
    Defect("a batch is stored in part", cut_batch, "batch_in_part", "batch "),
    Defect(
        "a committed offset is above the head",
        raw("a", "UPDATE reader SET committed = committed + 3 WHERE queue_id = {q}"),
        *("committed_above", "queue {a} committed 16", "committed_above"),
    ),
    Defect(
        "a dead message is lost",
        lambda run: plant(run.failing, "DELETE FROM dead_message"),
        *("dead_lost", "queue {b} offset 8"),
    ),
    Defect("a dead message is kept twice", dead_again, "dead_twice", "queue {b} offset 8"),
    Defect(
        "a delayed message is lost",
        raw("a", "DELETE FROM delayed_message"),
        *("delayed_lost", "delayed message d"),
    ),
    Defect(
        "a delayed message waits although it came",
        waits_again,
        "delayed_twice",
        "delayed message d",
    ),
    Defect(
        "two messages of a key are stored in the wrong order",
        swap_everywhere,
        *("stored_order", "queue {a} offset 4", None, ("order",)),
    ),
)
IN_JOURNALS = (
    Defect(
        "a message was never handled, and is not committed",
        not_reached,
        "not_handled",
        "queue {a} offset 9",
    ),
    Defect(
        "a message was skipped: it is committed, and nobody handled it",
        edited(SECOND, without("a", 7, "begin", "end")),
        *("skipped", "queue {a} offset 7"),
    ),
    Defect(
        "a handler never returned, and its message is committed",
        edited(SECOND, without("b", 7, "end")),
        *("skipped", "queue {b} offset 7"),
    ),
    Defect(
        "a delayed message came and was skipped",
        edited(SECOND, without("a", 12, "begin", "end")),
        *("skipped", "queue {a} offset 12"),
    ),
    Defect(
        "a former owner started after the new one had",
        handled_by(FIRST, epoch_of=FIRST),
        *("former_owner", "queue {a} offset 8"),
    ),
    Defect(
        "two owners at the same time",
        handled_by(FIRST, epoch_of=SECOND),
        *("two_owners", "queue {a} offset 8"),
    ),
    Defect(
        "a message was started before the one in front of it",
        edited(SECOND, out_of_order),
        "order",
        "queue {a} offset 8",
    ),
    Defect(
        "a commit went back",
        edited(WATCHER, seen("committed")),
        "commit_fell",
        "queue {a} committed 11",
    ),
    Defect(
        "an epoch went back",
        edited(WATCHER, seen("epoch")),
        "epoch_fell",
        "queue {a} epoch",
    ),
    Defect(
        "a head went back", edited(WATCHER, seen("head")), "head_fell", "queue {a} head 11"
    ),
    Defect(
        "a handler got another message than is stored",
        edited(
            SECOND,
            lambda run, lines: [
                line | {"number": 0}
                if (line.get("queue"), line.get("offset")) == (run.a, 7)
                else line
                for line in lines
            ],
        ),
        *("handled_other", "queue {a} offset 7", None, ("skipped",)),
    ),
    Defect(
        "a message has receipts for two places",
        edited(SENDER, receipt(lambda run, line: {"queue": run.b, "offset": 99})),
        *("two_receipts", "message 0", None, ("lost", "skipped", "not_handled")),
    ),
    Defect(
        "an offset was given to two messages",
        edited(SENDER, receipt(lambda run, line: {"number": number_at(run, run.a, 1)})),
        *("offset_twice", "queue {a} offset 0", None, ("two_receipts", "skipped")),
    ),
    Defect(
        "an application saw an error",
        edited(
            FIRST,
            lambda run, lines: [
                *lines[:-1],
                lines[0] | {"what": "error", "error": "Oh"},
                lines[-1],
            ],
        ),
        *("error", FIRST),
    ),
    Defect(
        "a journal's last line is torn", cut_bytes(SECOND, 12), "journal", f"{SECOND} line"
    ),
    Defect(
        "a journal lacks its end",
        cut_lines(SENDER, -3, None),
        "journal",
        f"{SENDER} line",
        None,
        ANYTHING,
    ),
    Defect(
        "a journal lacks lines in the middle",
        cut_lines(FIRST, 4, 6),
        "journal",
        f"{FIRST} line 5",
        None,
        ANYTHING,
    ),
)
ALL = (*IN_TABLES, *IN_JOURNALS)
