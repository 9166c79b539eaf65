"""Failed messages of groups, as typed calls: `Admin(transport).dead_letters`.

These are messages that wait for a retry, dead letters, and redrives, which send dead
letters again. All calls need the right `manage` on the group.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal, cast
from urllib.parse import quote

from catmq_client.admin.calls import Calls, drop_none, path_of, with_body_bytes
from catmq_client.admin.shapes import (
    DeadLetter,
    DeadLetterSummary,
    Redrive,
    Retries,
)

PAGE = 500
# Ids in the URL of a request, whose length is limited.
IDS_AT_ONCE = 100


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
