"""The options of the data source `catmq`, checked before anything is read.

Spark shows options in its UI and its logs, so none of them is a secret: the API key and the accounts of
nodes come from the environment of the driver.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from dataclasses import dataclass

from spark_tasks.errors import OptionError

# Written as Spark users write options; Spark itself does not tell upper from lower case.
KNOWN = (
    "topic",  # the topic; always needed
    "url",  # broker URLs, separated by commas; default CATMQ_URL
    "queues",  # ids, separated by commas; default all
    "startingOffsets",  # earliest (default), latest, or {"queue": offset}
    "endingOffsets",  # latest (default; the head when the read is planned), or {"queue": offset}
    "startingTimestamp",  # ms since 1970 UTC: from the first message stored then or later
    "endingTimestamp",  # ms since 1970 UTC: up to the last message stored before
    "rowsPerPartition",  # rows one task reads, about; default 250,000
    "chunkRows",  # rows one statement reads, at most; default 10,000
    "maxRowsPerSecond",  # rows a task reads a second, at most; default no limit
    "maxOffsetsPerTrigger",  # streams: offsets of a micro-batch, at most; default no limit
    "archive",  # directory of the topic's archive: errors say which of what is gone it holds
    "runId",  # writing: a name that a repeat of the same run gives again, so that nothing is stored twice
    "chunkMessages",  # writing: messages in one request, at most; default 500
    "messagesPerSecond",  # writing: messages a task sends a second, at most; default no limit
)
_LOWER = {name.lower(): name for name in KNOWN}
IGNORED = ("path", "checkpointlocation")  # what Spark hands on of its own

Where = str | dict[int, int]


@dataclass(frozen=True, kw_only=True)
class Options:
    """Checked options; see KNOWN. `start` and `end` are earliest, latest or {queue: offset}."""

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
        named = [queue for where in (self.start, self.end) if isinstance(where, dict) for queue in where]
        return tuple(sorted({*self.queues, *named})) if self.queues else ()


def parsed(given: Mapping[str, str]) -> Options:
    """The options that Spark was given. Raises OptionError, naming the option."""
    values = {_known(name): text for name, text in given.items() if name.lower() not in IGNORED}
    if not values.get("topic"):
        raise OptionError('option topic is missing: .option("topic", "orders")')
    return Options(
        topic=values["topic"],
        url=values.get("url"),
        queues=_ids(values),
        start=_where(values, "startingOffsets", words=("earliest", "latest"), default="earliest"),
        end=_where(values, "endingOffsets", words=("latest",), default="latest"),
        start_ms=_optional(values, "startingTimestamp"),
        end_ms=_optional(values, "endingTimestamp"),
        rows_per_partition=_number(values, "rowsPerPartition", Options.rows_per_partition),
        chunk_rows=_number(values, "chunkRows", Options.chunk_rows),
        max_rows_per_second=_number(values, "maxRowsPerSecond", 0),
        max_offsets_per_trigger=_number(values, "maxOffsetsPerTrigger", 0),
        archive=values.get("archive"),
        run_id=values.get("runId"),
        chunk_messages=_number(values, "chunkMessages", Options.chunk_messages, most=1000),
        messages_per_second=_number(values, "messagesPerSecond", 0),
    )


def _known(name: str) -> str:
    if name.lower() in _LOWER:
        return _LOWER[name.lower()]
    near = difflib.get_close_matches(name.lower(), _LOWER, n=1)
    hint = f"did you mean {_LOWER[near[0]]}?" if near else f"there are {', '.join(KNOWN)}"
    raise OptionError(f"{name} is not an option of catmq; {hint}")


def _number(values: Mapping[str, str], name: str, default: int, *, most: int | None = None) -> int:
    text = values.get(name)
    if text is None:
        return default
    if not text.strip().isdecimal() or int(text) < 1 or (most is not None and int(text) > most):
        limit = f" and at most {most}" if most is not None else ""
        raise OptionError(f"option {name} must be a whole number of at least 1{limit}, not {text!r}")
    return int(text)


def _optional(values: Mapping[str, str], name: str) -> int | None:
    return _number(values, name, 0) if name in values else None


def _ids(values: Mapping[str, str]) -> tuple[int, ...]:
    text = values.get("queues", "")
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not all(part.isdecimal() for part in parts):
        raise OptionError(f"option queues must be ids separated by commas, such as 1,2, not {text!r}")
    return tuple(map(int, parts))


def _where(values: Mapping[str, str], name: str, *, words: tuple[str, ...], default: str) -> Where:
    text = values.get(name, default).strip()
    if text in words:
        return text
    expected = f'option {name} must be {" or ".join(words)} or such as {{"1": 500}}, not {text!r}'
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
