"""Ways to plant a defect in a clean run: in its tables, bypassing the product, or in its
journals.
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
    """Return a message's body as an SQL literal."""
    return f"X'{str(number).encode().hex()}'"


def set_number(queue: int, offset: int, number: object) -> None:
    """Change the message stored at an offset."""
    plant(
        queue, f"UPDATE message_{{q}} SET body = {body(number)} WHERE msg_offset = {offset}"
    )


def number_at(run: CleanRun, queue: int, offset: int) -> int:
    """Return the number of the message stored at an offset."""
    ((stored_body,),) = run.asking(queue)(
        f"SELECT body FROM message_{queue} WHERE msg_offset = {offset}"
    )
    return int(stored_body)


def head_of(run: CleanRun, queue: int) -> int:
    """Return the log end offset of a queue."""
    return int(
        run.asking(queue)(f"SELECT head FROM queue_head WHERE queue_id = {queue}")[0][0]
    )


def append(run: CleanRun, queue: int, number: int) -> None:
    """Store a message once more, as a send would. Only its number shows that it is a copy."""
    head = head_of(run, queue)
    columns = "msg_key, tag, headers, trace_id, producer, stored_at, attempt"
    plant(
        queue,
        f"INSERT INTO message_{{q}} (msg_offset, body, {columns}) "
        f"SELECT {head}, {body(number)}, {columns} FROM message_{{q}} WHERE msg_offset = "
        f"{head - 1}",
        "UPDATE queue_head SET head = head + 1 WHERE queue_id = {q}",
    )
    # Without a matching batch row, `unclaimed` would be reported as well.
    remember(run, queue, head, head + 1)


def remember(run: CleanRun, queue: int, first: int, end: int) -> None:
    """Insert a row of sent_batch that matches the messages at these offsets."""
    rows = stored.read([(run.asking(queue), [queue])]).queues[queue].rows
    digest = verdicts.digest([row for row in rows if first <= row.offset < end]).hex()
    plant(
        queue,
        f"INSERT INTO sent_batch SELECT X'{batch_ids.new().hex}', {{q}}, {first}, {end - first}, "
        f"X'{digest}', stored_at FROM message_{{q}} WHERE msg_offset = {first}",
    )


def lose_tail(run: CleanRun, queue: int, head: int) -> None:
    """Make a node look as if it came back without its latest writes, consistent in itself."""
    plant(
        queue,
        f"DELETE FROM message_{{q}} WHERE msg_offset >= {head}",
        f"DELETE FROM sent_batch WHERE queue_id = {{q}} AND first_offset >= {head}",
        f"UPDATE queue_head SET head = {head} WHERE queue_id = {{q}}",
        f"UPDATE reader SET committed = {head} WHERE queue_id = {{q}} AND committed > {head}",
    )


def cut_batch(run: CleanRun) -> None:
    """Delete the second message of the last batch of queue b, the send without a receipt."""
    head = head_of(run, run.b)
    plant(
        run.b,
        f"DELETE FROM message_{{q}} WHERE msg_offset = {head - 1}",
        f"DELETE FROM sent_batch WHERE queue_id = {{q}} AND first_offset = {head - 2}",
        f"UPDATE queue_head SET head = {head - 1} WHERE queue_id = {{q}}",
    )
    # The batch row matches the rest, so that only the journals show the missing message.
    remember(run, run.b, head - 2, head - 1)


def swap(run: CleanRun, queue: int, first_offset: int, second_offset: int) -> None:
    """Exchange the messages at two offsets."""
    first, second = (
        number_at(run, queue, first_offset),
        number_at(run, queue, second_offset),
    )
    set_number(queue, first_offset, second)
    set_number(queue, second_offset, first)


def swap_everywhere(run: CleanRun) -> None:
    """Store, acknowledge and handle two messages in the wrong order. Only their numbers
    show it.
    """
    # Journals and batch rows are changed as well; otherwise they would show the swap first.
    number, other_number = number_at(run, run.a, 2), number_at(run, run.a, 4)
    swap(run, run.a, 2, 4)
    for name in (SENDER, *MEMBERS):
        lines = run.lines(name)
        for line in lines:
            if line["what"] in ("sent", "begin", "end") and line["number"] in (
                number,
                other_number,
            ):
                line["number"] = number if line["number"] == other_number else other_number
        run.rewrite(name, lines)
    for first in (2, 4):
        plant(
            run.a,
            f"DELETE FROM sent_batch WHERE queue_id = {{q}} AND first_offset = {first}",
        )
        remember(run, run.a, first, first + 2)


def later(run: CleanRun, queue: int, offset: int) -> None:
    """Make a message look as if it was stored an hour later."""
    sqlite = node_pools.node_of(queue).info.engine == "sqlite"
    when = "stored_at + 3600000" if sqlite else "stored_at + INTERVAL 1 HOUR"
    plant(queue, f"UPDATE message_{{q}} SET stored_at = {when} WHERE msg_offset = {offset}")


def edited(
    name: str, edit: Callable[[CleanRun, Lines], Lines]
) -> Callable[[CleanRun], None]:
    """Return an action that edits the lines of a journal."""

    def act(run: CleanRun) -> None:
        run.rewrite(name, edit(run, run.lines(name)))

    return act


def without(queue: str, offset: int, *kinds: str) -> Callable[[CleanRun, Lines], Lines]:
    """Return an edit that removes the lines of a kind about a message."""

    def edit(run: CleanRun, lines: Lines) -> Lines:
        place = getattr(run, queue), offset
        return [
            line
            for line in lines
            if line["what"] not in kinds or (line["queue"], line["offset"]) != place
        ]

    return edit


def index_of(lines: Lines, what: str, queue: int, offset: int) -> int:
    """Return the index of the line of a kind about a message."""
    return next(
        index
        for index, line in enumerate(lines)
        if line["what"] == what and (line["queue"], line["offset"]) == (queue, offset)
    )


def handled_by(member: str, epoch_of: str) -> Callable[[CleanRun], None]:
    """Return an action: a member also handles the third message of the second member,
    shortly after it.
    """

    def act(run: CleanRun) -> None:
        other_lines, lines = run.lines(SECOND), run.lines(member)
        begin = other_lines[index_of(other_lines, "begin", run.a, 8)]
        epoch = run.epochs[epoch_of]
        for what in ("begin", "end"):
            at = {"at": begin["at"] + 1e-5, "what": what, "epoch": epoch}
            # Before the last line, which marks the journal as complete.
            lines.insert(len(lines) - 1, {**begin, **at})
        run.rewrite(member, lines)

    return act


def out_of_order(run: CleanRun, lines: Lines) -> Lines:
    """Make the handler of a message start before that of the message in front of it."""
    first, second = (lines[index_of(lines, "begin", run.a, offset)] for offset in (8, 9))
    first["at"], second["at"] = second["at"], first["at"]
    return lines


def not_reached(run: CleanRun) -> None:
    """Make the last acknowledged messages of queue a neither handled nor committed."""
    cut = 9

    def edit(run: CleanRun, lines: Lines) -> Lines:
        return [
            line
            for line in lines
            if not (line.get("queue") == run.a and line.get("offset", 0) >= cut)
        ]

    edited(SECOND, edit)(run)
    edited(
        WATCHER,
        lambda run, lines: [line for line in lines if line.get("committed", 0) <= cut],
    )(run)
    plant(run.a, f"UPDATE reader SET committed = {cut} WHERE queue_id = {{q}}")


def seen(name: str) -> Callable[[CleanRun, Lines], Lines]:
    """Return an edit that lowers a value of queue a's last recorded position (of the head:
    the position before).
    """

    def edit(run: CleanRun, lines: Lines) -> Lines:
        queue_lines = [line for line in lines if line.get("queue") == run.a]
        queue_lines[-2 if name == "head" else -1][name] -= 2
        return lines

    return edit


def receipt(change: Callable[[CleanRun, Line], Line]) -> Callable[[CleanRun, Lines], Lines]:
    """Return an edit that adds a receipt, derived from that of the first message of queue
    a.
    """

    def edit(run: CleanRun, lines: Lines) -> Lines:
        line = lines[index_of(lines, "sent", run.a, 0)]
        # The last line marks the journal as complete, so it stays last.
        return [*lines[:-1], {**line, **change(run, line)}, lines[-1]]

    return edit


def cut_bytes(name: str, count: int) -> Callable[[CleanRun], None]:
    """Return an action that removes the last bytes of a journal."""

    def act(run: CleanRun) -> None:
        run.path(name).write_bytes(run.path(name).read_bytes()[:-count])

    return act


def cut_lines(name: str, first: int, end: int | None) -> Callable[[CleanRun], None]:
    """Return an action that removes whole lines of a journal."""

    def act(run: CleanRun) -> None:
        lines = run.path(name).read_bytes().splitlines(keepends=True)
        del lines[first:end]
        run.path(name).write_bytes(b"".join(lines))

    return act


def raw(queue: str, *statements: str) -> Callable[[CleanRun], None]:
    """Return an action that runs statements on the node of queue a or b. `{q}` is the
    queue.
    """
    return lambda run: plant(getattr(run, queue), *statements)


def dead_again(run: CleanRun) -> None:
    """Store the dead message a second time."""
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
    """Add the delivered delayed message to the waiting messages, as a copy of the
    message that waits.
    """
    delivered = number_at(run, run.a, 12)
    columns = "queue_id, due_at, by_key, position, producer, stored_at, attempt"
    plant(
        run.a,
        f"INSERT INTO delayed_message (body, batch_id, {columns}) "
        f"SELECT {body(delivered)}, X'{batch_ids.new().hex}', {columns} FROM delayed_message",
    )
