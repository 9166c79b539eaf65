"""Ways to plant something wrong in a clean run: in its tables, behind the product, or in
its journals.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from messagestore.engine import batch_ids
from messagestore.pool import node_pools
from tests.support import stored, verdicts
from tests.support.clean_run import MEMBERS, SENDER, WATCHER, CleanRun
from tests.support.tampering import plant

FIRST, SECOND = MEMBERS
Line = dict[str, Any]
Lines = list[Line]


def body(number: object) -> str:
    """A message's body as a literal of SQL."""
    return f"X'{str(number).encode().hex()}'"


def set_number(queue: int, offset: int, number: object) -> None:
    """Changes what is stored at an offset."""
    plant(
        queue, f"UPDATE message_{{q}} SET body = {body(number)} WHERE msg_offset = {offset}"
    )


def number_at(run: CleanRun, queue: int, offset: int) -> int:
    """Return what is stored at an offset."""
    ((found,),) = run.asking(queue)(
        f"SELECT body FROM message_{queue} WHERE msg_offset = {offset}"
    )
    return int(found)


def head_of(run: CleanRun, queue: int) -> int:
    """A queue's head."""
    return int(
        run.asking(queue)(f"SELECT head FROM queue_head WHERE queue_id = {queue}")[0][0]
    )


def append(run: CleanRun, queue: int, number: int) -> None:
    """Stores a message once more, just as a send would: only its number tells that it is a
    second copy.
    """
    head = head_of(run, queue)
    columns = "msg_key, tag, headers, trace_id, producer, stored_at, attempt"
    plant(
        queue,
        f"INSERT INTO message_{{q}} (msg_offset, body, {columns}) "
        f"SELECT {head}, {body(number)}, {columns} FROM message_{{q}} WHERE msg_offset = "
        f"{head - 1}",
        "UPDATE queue_head SET head = head + 1 WHERE queue_id = {q}",
    )
    remember(run, queue, head, head + 1)


def remember(run: CleanRun, queue: int, first: int, end: int) -> None:
    """Writes a row of sent_batch that fits the messages at these offsets."""
    rows = stored.read([(run.asking(queue), [queue])]).queues[queue].rows
    digest = verdicts.digest([row for row in rows if first <= row.offset < end]).hex()
    plant(
        queue,
        f"INSERT INTO sent_batch SELECT X'{batch_ids.new().hex}', {{q}}, {first}, {end - first}, "
        f"X'{digest}', stored_at FROM message_{{q}} WHERE msg_offset = {first}",
    )


def lose_tail(run: CleanRun, queue: int, head: int) -> None:
    """A node that has come back without its latest writes, and looks well in itself."""
    plant(
        queue,
        f"DELETE FROM message_{{q}} WHERE msg_offset >= {head}",
        f"DELETE FROM sent_batch WHERE queue_id = {{q}} AND first_offset >= {head}",
        f"UPDATE queue_head SET head = {head} WHERE queue_id = {{q}}",
        f"UPDATE reader SET committed = {head} WHERE queue_id = {{q}} AND committed > {head}",
    )


def cut_batch(run: CleanRun) -> None:
    """The send without a receipt is the last one of queue b: its second message is not
    stored.
    """
    head = head_of(run, run.b)
    plant(
        run.b,
        f"DELETE FROM message_{{q}} WHERE msg_offset = {head - 1}",
        f"DELETE FROM sent_batch WHERE queue_id = {{q}} AND first_offset = {head - 2}",
        f"UPDATE queue_head SET head = {head - 1} WHERE queue_id = {{q}}",
    )
    remember(run, run.b, head - 2, head - 1)


def swap(run: CleanRun, queue: int, one: int, other: int) -> None:
    """Two messages lie at each other's places."""
    first, second = number_at(run, queue, one), number_at(run, queue, other)
    set_number(queue, one, second)
    set_number(queue, other, first)


def swap_everywhere(run: CleanRun) -> None:
    """Two messages are stored, acknowledged and handled in the wrong order; only numbers
    tell.
    """
    one, other = number_at(run, run.a, 2), number_at(run, run.a, 4)
    swap(run, run.a, 2, 4)
    for name in (SENDER, *MEMBERS):
        lines = run.lines(name)
        for line in lines:
            if line["what"] in ("sent", "begin", "end") and line["number"] in (one, other):
                line["number"] = one if line["number"] == other else other
        run.rewrite(name, lines)
    for first in (2, 4):
        plant(
            run.a,
            f"DELETE FROM sent_batch WHERE queue_id = {{q}} AND first_offset = {first}",
        )
        remember(run, run.a, first, first + 2)


def later(run: CleanRun, queue: int, offset: int) -> None:
    """A message says that it was stored an hour later."""
    sqlite = node_pools.node_of(queue).info.engine == "sqlite"
    when = "stored_at + 3600000" if sqlite else "stored_at + INTERVAL 1 HOUR"
    plant(queue, f"UPDATE message_{{q}} SET stored_at = {when} WHERE msg_offset = {offset}")


def edited(
    name: str, edit: Callable[[CleanRun, Lines], Lines]
) -> Callable[[CleanRun], None]:
    """Makes a journal tell something else."""

    def act(run: CleanRun) -> None:
        run.rewrite(name, edit(run, run.lines(name)))

    return act


def without(queue: str, offset: int, *kinds: str) -> Callable[[CleanRun, Lines], Lines]:
    """A journal that does not tell of a message."""

    def edit(run: CleanRun, lines: Lines) -> Lines:
        place = getattr(run, queue), offset
        return [
            one
            for one in lines
            if one["what"] not in kinds or (one["queue"], one["offset"]) != place
        ]

    return edit


def index_of(lines: Lines, what: str, queue: int, offset: int) -> int:
    """Where a journal tells of a message."""
    return next(
        index
        for index, one in enumerate(lines)
        if one["what"] == what and (one["queue"], one["offset"]) == (queue, offset)
    )


def handled_by(member: str, epoch_of: str) -> Callable[[CleanRun], None]:
    """A member handles the third message of the second member's, too, a moment after that
    one did.
    """

    def act(run: CleanRun) -> None:
        theirs, mine = run.lines(SECOND), run.lines(member)
        begin = theirs[index_of(theirs, "begin", run.a, 8)]
        epoch = run.epochs[epoch_of]
        for what in ("begin", "end"):
            at = {"at": begin["at"] + 1e-5, "what": what, "epoch": epoch}
            mine.insert(len(mine) - 1, {**begin, **at})
        run.rewrite(member, mine)

    return act


def out_of_order(run: CleanRun, lines: Lines) -> Lines:
    """The handler of one message started before that of the message in front of it."""
    one, other = (lines[index_of(lines, "begin", run.a, offset)] for offset in (8, 9))
    one["at"], other["at"] = other["at"], one["at"]
    return lines


def not_reached(run: CleanRun) -> None:
    """Queue a's last acknowledged messages were never handled, and are not committed
    either.
    """
    cut = 9

    def edit(run: CleanRun, lines: Lines) -> Lines:
        return [
            one
            for one in lines
            if not (one.get("queue") == run.a and one.get("offset", 0) >= cut)
        ]

    edited(SECOND, edit)(run)
    edited(
        WATCHER, lambda run, lines: [one for one in lines if one.get("committed", 0) <= cut]
    )(run)
    plant(run.a, f"UPDATE reader SET committed = {cut} WHERE queue_id = {{q}}")


def seen(name: str) -> Callable[[CleanRun, Lines], Lines]:
    """The last look at queue a, at its head the one before, saw a lower value than an
    earlier one.
    """

    def edit(run: CleanRun, lines: Lines) -> Lines:
        mine = [one for one in lines if one.get("queue") == run.a]
        mine[-2 if name == "head" else -1][name] -= 2
        return lines

    return edit


def receipt(change: Callable[[CleanRun, Line], Line]) -> Callable[[CleanRun, Lines], Lines]:
    """The sender tells one more receipt, made from that of the first message of queue a."""

    def edit(run: CleanRun, lines: Lines) -> Lines:
        told = lines[index_of(lines, "sent", run.a, 0)]
        return [*lines[:-1], {**told, **change(run, told)}, lines[-1]]

    return edit


def cut_bytes(name: str, count: int) -> Callable[[CleanRun], None]:
    """The file lacks its last bytes."""

    def act(run: CleanRun) -> None:
        run.path(name).write_bytes(run.path(name).read_bytes()[:-count])

    return act


def cut_lines(name: str, first: int, end: int | None) -> Callable[[CleanRun], None]:
    """Whole lines of the file are gone."""

    def act(run: CleanRun) -> None:
        lines = run.path(name).read_bytes().splitlines(keepends=True)
        del lines[first:end]
        run.path(name).write_bytes(b"".join(lines))

    return act


def raw(queue: str, *statements: str) -> Callable[[CleanRun], None]:
    """Runs statements on the node of queue a or b; `{q}` is the queue."""
    return lambda run: plant(getattr(run, queue), *statements)


def dead_again(run: CleanRun) -> None:
    """The dead message is kept a second time."""
    columns = (
        "group_id, topic_id, died_at, attempts, error_class, error, origin, body, producer"
    )
    plant(
        run.failing,
        f"INSERT INTO dead_message (batch_id, {columns}) SELECT X'{batch_ids.new().hex}', "
        f"{columns} "
        "FROM dead_message",
    )


def waits_again(run: CleanRun) -> None:
    """The delayed message that came into its queue waits, too: as a copy of the one that
    waits.
    """
    came = number_at(run, run.a, 12)
    columns = "queue_id, due_at, by_key, position, producer, stored_at, attempt"
    plant(
        run.a,
        f"INSERT INTO delayed_message (body, batch_id, {columns}) "
        f"SELECT {body(came)}, X'{batch_ids.new().hex}', {columns} FROM delayed_message",
    )
