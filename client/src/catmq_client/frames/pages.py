"""Pages of messages from the brokers, without a group.

While the application works on a page, the next page is fetched in a thread. A page proves
that it skips nothing: offsets are dense, and the broker gives a reason for each offset that
has no message.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

from catmq_client.admin.calls import path_of
from catmq_client.errors import Closed, InvalidRequest, OffsetsMissing, Unavailable
from catmq_client.frames.missing import MissingOffsets, warn_of_missing
from catmq_client.frames.ranges import QueueBounds, QueueRange
from catmq_client.http.transport import Transport, repeat_call, request_until
from catmq_client.message import BODY, OFFSET, Row, make_row

# Maximum number of messages per request; the API's limit.
PAGE_ROWS = 1000
# A page may have 8 MiB of bodies, on a slow network.
PAGE_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class Page:
    """Messages of a queue in the order of offsets.

    `passed_offsets` is the number of offsets from the begin of the page to `next_offset`.
    """

    queue: int
    rows: Sequence[Row]
    body_bytes: int
    passed_offsets: int
    next_offset: int
    missing: tuple[MissingOffsets, ...]


class TopicReader:
    """Reads the queues of a topic over a transport. Requests are repeated for `retry_s`."""

    def __init__(
        self, transport: Transport, topic: str, *, raise_expired: bool, retry_s: float
    ) -> None:
        self.topic = topic
        self._transport, self._retry_s = transport, retry_s
        self._raise_expired = raise_expired
        self._asks_for_rows = True
        self._ended = threading.Event()
        self._path = path_of("topics", topic=topic)

    def bounds(self) -> list[QueueBounds]:
        """Return the queues with their log start and log end offsets, by id.

        Offsets are None if the queue's node does not answer.
        """
        answer = self._get(self._path, {})
        queues = [QueueBounds(q["queue"], q["low"], q["head"]) for q in answer["queues"]]
        return sorted(queues)

    def wait_for_bounds(self, queues: Sequence[int]) -> list[QueueBounds]:
        """Return the bounds of all queues, with those of `queues` known.

        Raises Unavailable if a node of `queues` does not answer for `retry_s`.
        """

        def bounds_when_available() -> list[QueueBounds]:
            bounds = self.bounds()
            for queue in bounds:
                if queue.queue in queues and queue.head is None:
                    raise Unavailable(
                        f"{self.topic}, queue {queue.queue}: its node does not answer; try "
                        "again, or read other queues with queues=[…]",
                        code="node_unavailable",
                    )
            return bounds

        return repeat_call(
            bounds_when_available,
            within_s=self._retry_s,
            should_repeat=lambda error, _: error.code == "node_unavailable",
        )

    def first_stored_at(self, queue: int, at_ms: int) -> int | None:
        """Return the offset of the first message stored at or after a time, None if there
        is none yet. `at_ms` is in ms since 1970 UTC.
        """
        # Brokers refuse negative times; no message is as old.
        params = {"queue": queue, "from_ms": max(at_ms, 0), "limit": 1}
        while True:
            answer = self._get(f"{self._path}/messages", params)
            if answer["messages"]:
                return int(answer["messages"][0]["offset"])
            if answer["next"] is None:
                return None
            params["after"] = answer["next"]

    def pages(self, ranges: Sequence[QueueRange], *, limit: int | None) -> Iterator[Page]:
        """Yield the pages of all ranges, one range after another, up to `limit` messages.

        Raises OffsetsMissing, and what Transport.request raises.
        """
        remaining = limit
        with ThreadPoolExecutor(1, thread_name_prefix="catmq-frames") as fetcher:
            try:
                for span in ranges:
                    fetch = partial(self._fetch_page, span)
                    upcoming: Future[Page] | None = None
                    if span.first < span.end:
                        upcoming = fetcher.submit(fetch, span.first, remaining)
                    while upcoming is not None:
                        page = upcoming.result()
                        remaining = (
                            None if remaining is None else remaining - len(page.rows)
                        )
                        upcoming = None
                        # Requested before this page is used, so that the broker and the
                        # application work at the same time.
                        if page.next_offset < span.end and remaining != 0:
                            upcoming = fetcher.submit(fetch, page.next_offset, remaining)
                        for missing in page.missing:
                            self.report_missing(missing)
                        yield page
                    if remaining == 0:
                        return
            finally:
                # The executor waits for its thread, which may be between two tries.
                self._ended.set()

    def report_missing(self, missing: MissingOffsets) -> None:
        """Warn of offsets without messages. Raises OffsetsMissing if the read must end."""
        text = missing.describe(self.topic)
        if missing.reason == "unexplained":
            raise OffsetsMissing(f"{text}; have an operator run manage.py verify", missing)
        if missing.reason == "expired" and self._raise_expired:
            raise OffsetsMissing(
                f"{text}; start at 'earliest' or at offset {missing.end} of this queue, or "
                "continue without them with on_expired='warn'",
                missing,
            )
        warn_of_missing(text)

    def _fetch_page(self, span: QueueRange, offset: int, remaining: int | None) -> Page:
        """Return messages of a range from `offset` on, at most `remaining`."""
        queue, end = span.queue, span.end
        rows = min(PAGE_ROWS, end - offset, PAGE_ROWS if remaining is None else remaining)
        answer = self._get_page({"queue": queue, "offset": offset, "limit": rows})
        page_rows: Sequence[Row] = answer.get("rows") or list(
            map(make_row, answer["messages"])
        )
        # After a gap a page may reach beyond the end of the range.
        if page_rows and page_rows[-1][OFFSET] >= end:
            page_rows = [row for row in page_rows if row[OFFSET] < end]
        next_offset = answer["next"]
        # None: the page reached the log end offset, which is not below the end of the range.
        if next_offset is None or next_offset > end:
            next_offset = end
        reasons = [
            MissingOffsets(queue, gap["first"], min(gap["end"], end), gap["reason"])
            for gap in answer.get("missing", ())
            if gap["first"] < end
        ]
        explained = sum(gap.end - gap.first for gap in reasons)
        if len(page_rows) + explained < next_offset - offset or next_offset <= offset:
            # A broker of an earlier release gives no reasons, and repeats a page that lies
            # in a gap.
            reasons = [
                MissingOffsets(queue, first, last, "unexplained")
                for first, last in find_holes(
                    offset, max(next_offset, offset + 1), [row[OFFSET] for row in page_rows]
                )
            ]
        return Page(
            queue,
            page_rows,
            sum([len(row[BODY]) for row in page_rows]),
            next_offset - offset,
            next_offset,
            tuple(reasons),
        )

    def _get_page(self, params: dict[str, Any]) -> dict[str, Any]:
        """Return a page, in rows if the broker can: they cost it a thirtieth of the work."""
        path = f"{self._path}/messages"
        if self._asks_for_rows:
            try:
                return self._get(path, {**params, "form": "rows"})
            except InvalidRequest as error:
                # A broker of an earlier release does not know the parameter.
                if not any(wrong.field == "form" for wrong in error.errors):
                    raise
                self._asks_for_rows = False
        return self._get(path, params)

    def _get(self, path: str, params: Mapping[str, Any]) -> dict[str, Any]:
        """Return the answer to a GET, repeated while it fails with a retriable error."""
        return request_until(
            self._transport,
            "GET",
            path,
            params=params or None,
            within_s=self._retry_s,
            timeout_s=PAGE_TIMEOUT_S,
            wait=self._wait,
        )

    def _wait(self, seconds: float) -> None:
        """Pause before a request is repeated. Raises Closed if the read has ended."""
        if self._ended.wait(seconds):
            raise Closed("the read has ended")


def find_holes(first: int, end: int, offsets: Sequence[int]) -> list[tuple[int, int]]:
    """Return the ranges (first, end) below `end` that are not among the rising offsets.

    >>> find_holes(0, 10, [2, 3, 7])
    [(0, 2), (4, 7), (8, 10)]
    """
    holes, position = [], first
    for offset in (*offsets, end):
        if position < offset:
            holes.append((position, offset))
        position = offset + 1
    return holes
