"""The options of the data source `catmq`. All are checked before anything is read.

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

IGNORED = ("path", "checkpointlocation")  # passed by Spark itself

OffsetOption = str | dict[int, int]


@dataclass(frozen=True, kw_only=True)
class Options:
    """Checked options; KNOWN explains them.

    `start` and `end` are earliest, latest or {queue: offset}; `headers` is json or map.
    """

    topic: str
    url: str | None = None
    queues: tuple[int, ...] = ()
    start: OffsetOption = "earliest"
    end: OffsetOption = "latest"
    start_ms: int | None = None
    end_ms: int | None = None
    rows_per_partition: int = 250_000
    chunk_rows: int = 10_000
    max_rows_per_second: int = 0
    max_offsets_per_trigger: int = 0
    headers: str = "json"
    archive: str | None = None
    run_id: str | None = None
    chunk_messages: int = 500
    messages_per_second: int = 0

    @property
    def queues_to_plan(self) -> tuple[int, ...]:
        """The queues whose plan is needed. Empty: all queues of the topic."""
        queues = [
            queue
            for offsets in (self.start, self.end)
            if isinstance(offsets, dict)
            for queue in offsets
        ]
        return tuple(sorted({*self.queues, *queues})) if self.queues else ()


def parse_options(options: Mapping[str, str]) -> Options:
    """Return Spark's options, checked. Raises OptionError, which names the option."""
    values = {}
    for name, text in options.items():
        lower = name.lower()
        if lower in IGNORED:
            continue
        if lower not in _CANONICAL_NAMES:
            matches = difflib.get_close_matches(lower, _CANONICAL_NAMES, n=1)
            hint = (
                f"did you mean {_CANONICAL_NAMES[matches[0]]}?"
                if matches
                else f"there are {', '.join(KNOWN)}"
            )
            raise OptionError(f"{name} is not an option of catmq; {hint}")
        values[_CANONICAL_NAMES[lower]] = text
    if not values.get("topic"):
        raise OptionError('option topic is missing: .option("topic", "orders")')
    return Options(
        **{KNOWN[name][0]: KNOWN[name][1](name, text) for name, text in values.items()}
    )


def _keep_text(name: str, text: str) -> str:
    return text


def _parse_choice(name: str, text: str, *, choices: tuple[str, ...]) -> str:
    choice = text.strip().lower()
    if choice not in choices:
        raise OptionError(f"option {name} must be {' or '.join(choices)}, not {text!r}")
    return choice


def _parse_number(name: str, text: str, *, maximum: int | None = None) -> int:
    if (
        not text.strip().isdecimal()
        or int(text) < 1
        or (maximum is not None and int(text) > maximum)
    ):
        limit = f" and at most {maximum}" if maximum is not None else ""
        raise OptionError(
            f"option {name} must be a whole number of at least 1{limit}, not {text!r}"
        )
    return int(text)


def _parse_ids(name: str, text: str) -> tuple[int, ...]:
    ids = [text_of_id.strip() for text_of_id in text.split(",") if text_of_id.strip()]
    if not all(text_of_id.isdecimal() for text_of_id in ids):
        raise OptionError(
            f"option {name} must be ids separated by commas, such as 1,2, not {text!r}"
        )
    return tuple(map(int, ids))


def _parse_offsets(name: str, text: str, *, keywords: tuple[str, ...]) -> OffsetOption:
    text = text.strip()
    if text in keywords:
        return text
    expected = (
        f"option {name} must be {' or '.join(keywords)} "
        f'or such as {{"1": 500}}, not {text!r}'
    )
    try:
        offsets = json.loads(text)
    except ValueError:
        raise OptionError(expected) from None
    if not isinstance(offsets, dict) or not all(
        # JSON's true is an int in Python, so compare the type itself.
        queue.isdecimal() and type(offset) is int and offset >= 0
        for queue, offset in offsets.items()
    ):
        raise OptionError(expected)
    return {int(queue): offset for queue, offset in offsets.items()}


# Name of an option → its field, and the function that parses it. Spark does not distinguish
# upper and lower case in names.
KNOWN: dict[str, tuple[str, Callable[[str, str], Any]]] = {
    "topic": ("topic", _keep_text),  # the topic; always needed
    "url": ("url", _keep_text),  # broker URLs, separated by commas; default CATMQ_URL
    "queues": ("queues", _parse_ids),  # ids, separated by commas; default all
    # earliest (default), latest, or {"queue": offset}
    "startingOffsets": ("start", partial(_parse_offsets, keywords=("earliest", "latest"))),
    # latest (default; the log end offset when the read is planned), or {"queue": offset}
    "endingOffsets": ("end", partial(_parse_offsets, keywords=("latest",))),
    # ms since 1970 UTC: from the first message stored at this time or later
    "startingTimestamp": ("start_ms", _parse_number),
    # ms since 1970 UTC: up to the last message stored before this time
    "endingTimestamp": ("end_ms", _parse_number),
    # approximate number of rows of a task
    "rowsPerPartition": ("rows_per_partition", _parse_number),
    # maximum number of rows of a statement
    "chunkRows": ("chunk_rows", _parse_number),
    # maximum of each task; default no limit
    "maxRowsPerSecond": ("max_rows_per_second", _parse_number),
    # maximum of each micro-batch; default no limit
    "maxOffsetsPerTrigger": ("max_offsets_per_trigger", _parse_number),
    # json (default): a JSON object as text; map: map<string,string>
    "headers": ("headers", partial(_parse_choice, choices=("json", "map"))),
    # directory of archives: errors about deleted offsets name those that it contains
    "archive": ("archive", _keep_text),
    # writing: repeating a run with the same id stores no message twice
    "runId": ("run_id", _keep_text),
    # writing: maximum of a request
    "chunkMessages": ("chunk_messages", partial(_parse_number, maximum=1000)),
    # writing: maximum of each task; default no limit
    "messagesPerSecond": ("messages_per_second", _parse_number),
}
_CANONICAL_NAMES = {name.lower(): name for name in KNOWN}
