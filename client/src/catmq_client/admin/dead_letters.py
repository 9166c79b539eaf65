"""Failed messages, as typed calls: `Admin(transport).dead`.

Messages that wait for a retry, the dead, and redrives that bring dead ones back. All of it needs the right
`manage` on the group.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal, TypedDict, cast

from catmq_client.errors import OptionError
from catmq_client.http import wire
from catmq_client.http.transport import Transport, api_path

PAGE = 500
IDS_AT_ONCE = 100  # in the URL of a request


class DeadMessage(TypedDict):
    """A message of which no retry is left; `topic`, `queue`, `offset`: where it was sent."""

    id: str
    topic: str
    queue: int
    offset: int
    key: str | None
    tag: str | None
    trace_id: str | None
    attempts: int
    error_class: str
    error: str
    first_failed_at_ms: int
    died_at_ms: int
    size: int


class DeadCount(TypedDict):
    """Number of messages of a topic that died of a kind of error."""

    topic: str
    error_class: str
    count: int
    first_at_ms: int
    last_at_ms: int


class Summary(TypedDict):
    """Counts, the largest first; `away`: nodes that did not answer."""

    count: int
    errors: list[DeadCount]
    away: list[str]


class Redrive(TypedDict):
    """Dead messages that are brought back: running, done, stopped or failed. `detail`: what holds it up."""

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


class FailedMessage(TypedDict):
    """A message that waits for its retry; `attempt`: the retry that it waits for."""

    topic: str
    queue: int
    offset: int
    key: str | None
    tag: str | None
    attempt: int
    error: str
    first_failed_at_ms: int
    due_at_ms: int
    size: int


class FailedCount(TypedDict):
    """Number of messages of a topic that wait for their retry time, and of those that are due and unread."""

    topic: str
    failure_topic: str
    waiting: int
    unread: int


class Failed(TypedDict):
    """Messages that wait for a retry; those that are due first."""

    topics: list[FailedCount]
    messages: list[FailedMessage]
    away: list[str]


class DeadLetters:
    """Calls about the failed messages of groups. None is repeated: a failure goes to who asked."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def failed(self, group: str, *, topic: str | None = None, limit: int = 100) -> Failed:
        """Return the messages that wait for a retry."""
        params = _given({"topic": topic, "limit": limit})
        return cast(Failed, self._call("GET", _path(group, "failed"), params=params))

    def messages(
        self, group: str, *, topic: str | None = None, error: str | None = None, page: int = PAGE
    ) -> Iterator[DeadMessage]:
        """The dead of a group, the newest first; `error` is their kind, `error_class` of the messages."""
        params = _given({"topic": topic, "error": error, "limit": page})
        while True:
            answer = self._call("GET", _path(group, "dead"), params=params)
            yield from answer["messages"]
            if answer["next"] is None:
                return
            params["after"] = answer["next"]

    def summary(self, group: str, *, topic: str | None = None) -> Summary:
        """Count the dead messages of each kind."""
        params = _given({"topic": topic})
        return cast(Summary, self._call("GET", _path(group, "dead", "summary"), params=params))

    def message(self, group: str, message: str) -> dict[str, Any]:
        """A dead message with `headers` and `body_bytes`."""
        found = self._call("GET", _path(group, "dead", message))
        return {**found, "body_bytes": wire.body_of(found)}

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
        """Begins to bring back some, those of a topic and kind, or all; `rate`: messages a second."""
        body = _given({"ids": ids, "topic": topic, "error": error, "to": to, "rate": rate})
        if everything:
            body["all"] = True
        return cast(Redrive, self._call("POST", _path(group, "dead", "redrive"), body=body))

    def redrives(self, group: str, *, limit: int = 20) -> list[Redrive]:
        """The last redrives of a group, the newest first."""
        answer = self._call("GET", _path(group, "redrives"), params={"limit": limit})
        return cast(list[Redrive], answer["redrives"])

    def redrive_state(self, group: str, redrive: int) -> Redrive:
        """Return the progress of a redrive."""
        return cast(Redrive, self._call("GET", _path(group, "redrives", str(redrive))))

    def stop_redrive(self, group: str, redrive: int) -> None:
        """Stops a redrive; what it has brought back stays so."""
        self._call("DELETE", _path(group, "redrives", str(redrive)))

    def drop(
        self,
        group: str,
        *,
        ids: Sequence[str] | None = None,
        topic: str | None = None,
        error: str | None = None,
        everything: bool = False,
    ) -> int:
        """Drops some for good, those of a topic and kind, or all; how many."""
        if ids is None:
            params = _given({"topic": topic, "error": error})
            if everything:
                params["all"] = "true"
            return int(self._call("DELETE", _path(group, "dead"), params=params)["dropped"])
        count = 0
        for first in range(0, len(ids), IDS_AT_ONCE):
            some = ",".join(ids[first : first + IDS_AT_ONCE])
            count += self._call("DELETE", _path(group, "dead"), params={"ids": some})["dropped"]
        return count

    def _call(self, method: str, path: str, **more: Any) -> dict[str, Any]:
        return self._transport.request(method, path, **more)


def _path(group: str, *words: str) -> str:
    """Raises OptionError for a group that can have no such name: it would change the path on its way."""
    if not group or group.strip(".") == "" or "/" in group:
        raise OptionError(f"group: {group!r} is no name")
    return api_path("groups", group, *words)


def _given(values: dict[str, object]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}
