"""Checks the leases of share groups in a queue, as its node has them.

Reader rows are read before the leases and the head after them. So no lease may be below a
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
    """Yield the findings on the leases of each group. `names` is {group id: name}."""
    # Share groups have no instances.
    rows = {row.group_id: row for row in readers if not row.instance}
    for share in shares:
        row = rows.get(share.group_id)
        where = f"group {names.get(share.group_id, f'with id {share.group_id}')}"
        if row is None or row.epoch != share.epoch:
            # The group starts again at the committed offset, and these leases do not count.
            continue
        for detail, span in _find_contradictions(share, row.committed, head):
            yield Finding("leases_wrong", where, detail, *span)


def _find_contradictions(
    share: QueueShare, committed: int, head: int | None
) -> Iterator[tuple[str, tuple[int, int]]]:
    """Yield (detail, range of offsets) for each contradiction in the leases of a group."""
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
    previous_end = 0
    # Rising, so that each stretch needs a comparison with the highest end so far only.
    spans = sorted(
        (*span, run)
        for run in share.runs
        for span in sharing.spans_of(run.unfinished_bits, first=run.first)
    )
    for first, end, run in spans:
        if end > share.next_offset:
            yield (
                f"run {_describe(run)} is above {share.next_offset}, up to which was leased",
                (first, end),
            )
        if first < committed:
            yield (
                f"run {_describe(run)} has unfinished messages below the committed offset",
                (first, end),
            )
        if first < previous_end:
            yield (
                f"messages of run {_describe(run)} are in another run, too",
                (first, min(end, previous_end)),
            )
        previous_end = max(previous_end, end)


def _describe(run: Run) -> str:
    return shown(run.first, run.end)
