"""Leases of share groups in a queue, as its node holds them.

The reader rows were read before and the head is read after: so no lease may be below a
committed offset, and no position above the head.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from messagestore.tables.shapes import ReaderRow
from messagestore.tables.shares.run_sql import QueueShare, Run
from messagestore.verify.findings import Finding
from messagestore.verify.ranges import shown
from metadata.rules.groups import sharing


def judge(
    shares: Sequence[QueueShare],
    *,
    readers: Iterable[ReaderRow],
    head: int | None,
    names: Mapping[int, str],
) -> Iterator[Finding]:
    """Yield what is wrong with the leases of each group; `names`: of groups, by id."""
    rows = {row.group_id: row for row in readers if not row.instance}
    for share in shares:
        row = rows.get(share.group_id)
        where = f"group {names.get(share.group_id, f'with id {share.group_id}')}"
        if row is None or row.epoch != share.epoch:
            continue  # it starts again at the committed offset
        for what, span in _wrong(share, row.committed, head):
            yield Finding("leases_wrong", where, what, *span)


def _wrong(
    share: QueueShare, committed: int, head: int | None
) -> Iterator[tuple[str, tuple[int, int]]]:
    if head is not None and share.next_offset > head:
        yield (
            f"leased up to {share.next_offset}, the log end offset is {head}",
            (head, share.next_offset),
        )
    if share.next_offset < committed:
        yield (
            f"leased up to {share.next_offset}, committed is {committed}",
            (share.next_offset, committed),
        )
    before = 0
    for first, end, run in _unfinished(share.runs):
        if end > share.next_offset:
            yield (
                f"run {_of(run)} is above {share.next_offset}, up to which was leased",
                (first, end),
            )
        if first < committed:
            yield (
                f"run {_of(run)} has unfinished messages below the committed offset",
                (first, end),
            )
        if first < before:
            yield (
                f"messages of run {_of(run)} are in another run, too",
                (first, min(end, before)),
            )
        before = max(before, end)


def _unfinished(runs: Sequence[Run]) -> list[tuple[int, int, Run]]:
    """Stretches that are still in runs, rising."""
    return sorted(
        (*span, run) for run in runs for span in sharing.spans_of(run.left, first=run.first)
    )


def _of(run: Run) -> str:
    return shown(run.first, run.end)
