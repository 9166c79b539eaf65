"""Failed messages of groups, as typed calls: `Admin(transport).dead_letters`.

These are messages that wait for a retry, dead letters, and redrives, which send dead
letters again. All calls need the right `manage` on the group.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal, TypedDict, cast
from urllib.parse import quote

from catmq_client.admin.calls import Calls, drop_none, path_of, with_body_bytes

PAGE = 500
# Ids in the URL of a request, whose length is limited.
IDS_AT_ONCE = 100


class FailedMessage(TypedDict):
    """A message that failed. `topic`, `queue` and `offset` are where it was first sent."""

    topic: str
    queue: int
    offset: int
    key: str | None
    tag: str | None
    error: str
    first_failed_at_ms: int
    size: int


class DeadLetter(FailedMessage):
    """A message without a retry left."""

    id: str
    trace_id: str | None
    attempts: int
    error_class: str
    died_at_ms: int


class DeadLetterCount(TypedDict):
    """Number of dead letters of a topic and kind of error."""

    topic: str
    error_class: str
    count: int
    first_at_ms: int
    last_at_ms: int


class DeadLetterSummary(TypedDict):
    """Counts, the largest first. Nodes in `away` did not answer."""

    count: int
    errors: list[DeadLetterCount]
    away: list[str]


class Redrive(TypedDict):
    """A redrive of dead letters: running, done, stopped or failed.

    `detail` is the reason why it does not progress.
    """

    id: int
    group: str
    topic: str | None
    error: str | None
    to: Literal["group", "topic"]
    rate: int
    state: str
    total: int
    redriven: int
    skipped: int
    detail: str
    asked_by: str
    created_at_ms: int
    finished_at_ms: int | None


class RetryMessage(FailedMessage):
    """A message that waits for a retry. `attempt` is the number of that retry."""

    attempt: int
    due_at_ms: int


class RetryCount(TypedDict):
    """Numbers of a topic's messages that wait for their retry time, or are due and unread."""

    topic: str
    failure_topic: str
    waiting: int
    unread: int


class Retries(TypedDict):
    """Messages that wait for a retry, due ones first."""

    topics: list[RetryCount]
    messages: list[RetryMessage]
    away: list[str]


class DeadLetters(Calls):
    """Calls about failed messages of groups. A failed call raises; it is not repeated."""

    def failed(self, group: str, *, topic: str | None = None, limit: int = 100) -> Retries:
        """Return the messages that wait for a retry."""
        params = drop_none({"topic": topic, "limit": limit})
        return cast(Retries, self._call("GET", _group_path(group, "failed"), params=params))

    def messages(
        self,
        group: str,
        *,
        topic: str | None = None,
        error: str | None = None,
        key: str | None = None,
        page: int = PAGE,
    ) -> Iterator[DeadLetter]:
        """Return the dead letters of a group, newest first. `error` is an `error_class`."""
        path = _group_path(group, "dead")
        return self._pages(path, "messages", limit=page, topic=topic, error=error, key=key)

    def summary(self, group: str, *, topic: str | None = None) -> DeadLetterSummary:
        """Count the dead letters of each kind."""
        params = drop_none({"topic": topic})
        return cast(
            DeadLetterSummary,
            self._call("GET", _group_path(group, "dead", "summary"), params=params),
        )

    def message(self, group: str, message: str) -> dict[str, Any]:
        """Return a dead letter with `headers` and `body_bytes`."""
        return with_body_bytes(self._call("GET", _group_path(group, "dead", message)))

    def redrive(
        self,
        group: str,
        *,
        ids: Sequence[str] | None = None,
        topic: str | None = None,
        error: str | None = None,
        everything: bool = False,
        to: Literal["group", "topic"] = "group",
        rate: int | None = None,
    ) -> Redrive:
        """Begin to redrive messages by ids, by topic and kind of error, or all.

        `rate` is the number of messages per second.
        """
        body = drop_none(
            {"ids": ids, "topic": topic, "error": error, "to": to, "rate": rate}
        )
        if everything:
            body["all"] = True
        return cast(
            Redrive, self._call("POST", _group_path(group, "dead", "redrive"), body=body)
        )

    def redrives(self, group: str, *, limit: int = 20) -> list[Redrive]:
        """Return the last redrives of a group, newest first."""
        answer = self._call("GET", _group_path(group, "redrives"), params={"limit": limit})
        return cast(list[Redrive], answer["redrives"])

    def redrive_state(self, group: str, redrive: int) -> Redrive:
        """Return the progress of a redrive."""
        return cast(
            Redrive, self._call("GET", _group_path(group, "redrives", str(redrive)))
        )

    def stop_redrive(self, group: str, redrive: int) -> None:
        """Stop a redrive. Messages that were sent again are not taken back."""
        self._call("DELETE", _group_path(group, "redrives", str(redrive)))

    def drop(
        self,
        group: str,
        *,
        ids: Sequence[str] | None = None,
        topic: str | None = None,
        error: str | None = None,
        everything: bool = False,
    ) -> int:
        """Delete messages by ids, by topic and kind of error, or all. Return their number."""
        if ids is None:
            params = drop_none({"topic": topic, "error": error})
            if everything:
                params["all"] = "true"
            return int(
                self._call("DELETE", _group_path(group, "dead"), params=params)["dropped"]
            )
        count = 0
        for first in range(0, len(ids), IDS_AT_ONCE):
            ids_text = ",".join(ids[first : first + IDS_AT_ONCE])
            count += self._call(
                "DELETE", _group_path(group, "dead"), params={"ids": ids_text}
            )["dropped"]
        return count


def _group_path(group: str, *segments: str) -> str:
    return "/".join(
        [path_of("groups", group=group), *(quote(segment, safe="") for segment in segments)]
    )
