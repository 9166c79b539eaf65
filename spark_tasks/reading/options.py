"""The options of the data source `catmq`, checked before anything is read.

Spark shows options in its UI and its logs, so none of them is a secret: the API key and the
accounts of nodes come from the environment of the driver.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from spark_tasks.errors import OptionError

IGNORED = ("path", "checkpointlocation")  # what Spark hands on of its own

Where = str | dict[int, int]


@dataclass(frozen=True, kw_only=True)
class Options:
    """Checked options; see KNOWN. `start` and `end` are earliest, latest or {queue:
    offset}.
    """

    topic: str
    url: str | None = None
    queues: tuple[int, ...] = ()
    start: Where = "earliest"
    end: Where = "latest"
    start_ms: int | None = None
    end_ms: int | None = None
    rows_per_partition: int = 250_000
    chunk_rows: int = 10_000
    max_rows_per_second: int = 0
    max_offsets_per_trigger: int = 0
    archive: str | None = None
    run_id: str | None = None
    chunk_messages: int = 500
    messages_per_second: int = 0

    @property
    def planned(self) -> tuple[int, ...]:
        """The queues whose plan is needed; empty: all."""
        named = [
            queue
            for where in (self.start, self.end)
            if isinstance(where, dict)
            for queue in where
        ]
        return tuple(sorted({*self.queues, *named})) if self.queues else ()


def parsed(given: Mapping[str, str]) -> Options:
    """The options that Spark was given. Raises OptionError, naming the option."""
    values = {
        _known(name): text for name, text in given.items() if name.lower() not in IGNORED
    }
    if not values.get("topic"):
        raise OptionError('option topic is missing: .option("topic", "orders")')
    return Options(
        **{KNOWN[name][0]: KNOWN[name][1](name, text) for name, text in values.items()}
    )


def _known(name: str) -> str:
    if name.lower() in _LOWER:
        return _LOWER[name.lower()]
    near = difflib.get_close_matches(name.lower(), _LOWER, n=1)
    hint = f"did you mean {_LOWER[near[0]]}?" if near else f"there are {', '.join(KNOWN)}"
    raise OptionError(f"{name} is not an option of catmq; {hint}")


def _text(name: str, text: str) -> str:
    return text


def _number(name: str, text: str, *, most: int | None = None) -> int:
    if (
        not text.strip().isdecimal()
        or int(text) < 1
        or (most is not None and int(text) > most)
    ):
        limit = f" and at most {most}" if most is not None else ""
        raise OptionError(
            f"option {name} must be a whole number of at least 1{limit}, not {text!r}"
        )
    return int(text)


def _ids(name: str, text: str) -> tuple[int, ...]:
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not all(part.isdecimal() for part in parts):
        raise OptionError(
            f"option {name} must be ids separated by commas, such as 1,2, not {text!r}"
        )
    return tuple(map(int, parts))


def _where(name: str, text: str, *, words: tuple[str, ...]) -> Where:
    text = text.strip()
    if text in words:
        return text
    expected = (
        f'option {name} must be {" or ".join(words)} or such as {{"1": 500}}, not {text!r}'
    )
    try:
        found = json.loads(text)
    except ValueError:
        raise OptionError(expected) from None
    if not isinstance(found, dict) or not all(map(_is_offset, found.values())):
        raise OptionError(expected)
    if not all(queue.isdecimal() for queue in found):
        raise OptionError(expected)
    return {int(queue): offset for queue, offset in found.items()}


def _is_offset(value: object) -> bool:
    return type(value) is int and value >= 0


# Written as Spark users write options, with the field of each and what reads it; Spark
# itself does not tell
# upper from lower case.
KNOWN: dict[str, tuple[str, Callable[[str, str], Any]]] = {
    "topic": ("topic", _text),  # the topic; always needed
    "url": ("url", _text),  # broker URLs, separated by commas; default CATMQ_URL
    "queues": ("queues", _ids),  # ids, separated by commas; default all
    # earliest (default), latest, or {"queue": offset}
    "startingOffsets": ("start", partial(_where, words=("earliest", "latest"))),
    # latest (default; the log end offset when the read is planned), or {"queue": offset}
    "endingOffsets": ("end", partial(_where, words=("latest",))),
    # ms since 1970 UTC: from the first stored then or later
    "startingTimestamp": ("start_ms", _number),
    # ms since 1970 UTC: up to the last message stored before
    "endingTimestamp": ("end_ms", _number),
    "rowsPerPartition": ("rows_per_partition", _number),  # rows one task reads, about
    "chunkRows": ("chunk_rows", _number),  # rows one statement reads, at most
    # of a task, at most; default no limit
    "maxRowsPerSecond": ("max_rows_per_second", _number),
    # of a micro-batch; default no limit
    "maxOffsetsPerTrigger": ("max_offsets_per_trigger", _number),
    # directory of archives: errors say which of what is gone it holds
    "archive": ("archive", _text),
    # writing: a repeat of a run gives the same, so that nothing is stored twice
    "runId": ("run_id", _text),
    # writing: of one request, at most
    "chunkMessages": ("chunk_messages", partial(_number, most=1000)),
    # writing: of a task, at most; default no limit
    "messagesPerSecond": ("messages_per_second", _number),
}
_LOWER = {name.lower(): name for name in KNOWN}
