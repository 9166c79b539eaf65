"""catmq export, catmq import"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from catmq_client.admin.definition_shapes import ImportStep
from catmq_client.cli.connection import Brokers
from catmq_client.cli.output import Columns, fields, note, print_rows, show
from catmq_client.cli.verbs import TABLE, Argument, Verb
from catmq_client.errors import OptionError

PATTERN = Argument(
    "--topic PATTERN", "only topics whose name matches, such as 'orders*', and their groups"
)
FILE = Argument("FILE", "document of an export; - reads standard input")
APPLY = Argument("--apply", "make the changes (default: only show them)")
EXISTING = Argument(
    "--existing",
    "what exists with other settings: refuse the import (default), keep them, or change them",
    choices=("refuse", "keep", "change"),
    default="refuse",
)
STEPS: Columns = {
    **fields("place kind name outcome"),
    "WHAT": lambda step: what(step),
}
BLOCKED = ("conflict", "unfinished")


def what(step: ImportStep) -> str:
    """Return what differs, or why an entry is a conflict."""
    differences = (
        f"{one['field']}: {written(one['here'])} > {written(one['there'])}"
        for one in step["differences"]
    )
    return step["problem"] or ", ".join(differences)


def written(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def export(args: argparse.Namespace, brokers: Brokers) -> int:
    """Write the document to standard output."""
    document = brokers.admin().export(topic=args.topic)
    show(json.dumps(document, ensure_ascii=False, indent=2) + "\n")
    counts = ", ".join(
        f"{len(part)} {name}" for name, part in document.items() if isinstance(part, list)
    )
    note(f"exported: {counts}")
    return 0


def import_file(args: argparse.Namespace, brokers: Brokers) -> int:
    """Show what an import would do; with `--apply` do it, unless something stands in the
    way.
    """
    document, admin = read(args.file), brokers.admin()
    planned = admin.import_definitions(document, existing=args.existing, dry_run=True)[
        "steps"
    ]
    print_rows(planned, STEPS, args.output)
    blocked = [one for one in planned if one["outcome"] in BLOCKED]
    if blocked:
        note(f"catmq: nothing was done: {counted(blocked)}")
        return 1
    if not args.apply:
        note(f"{counted(planned)}; nothing was done. Do it: --apply")
        return 0
    done = admin.import_definitions(document, existing=args.existing)["steps"]
    note(f"done: {counted(done)}")
    return 0


def counted(steps: Sequence[ImportStep]) -> str:
    """Return how many steps have which outcome.

    >>> counted([])
    'the document is empty'
    """
    counts = Counter(one["outcome"] for one in steps)
    return (
        ", ".join(f"{name} {count}" for name, count in counts.items())
        or "the document is empty"
    )


def read(name: str) -> dict[str, Any]:
    """Return the JSON object of a file. Raises OptionError, and OSError."""
    try:
        data = sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()
        # Takes UTF-8 and UTF-16, with or without a byte order mark: PowerShell's `>` writes
        # UTF-16.
        document = json.loads(data)
    except UnicodeDecodeError as error:
        raise OptionError(
            f"{name} is not {error.encoding.upper()} text: see byte {error.start + 1}"
        ) from None
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        raise OptionError(
            f"{name} is not a JSON document: see {place}; `catmq export` writes one"
        ) from None
    # a number of thousands of digits, or lists in lists in lists
    except (ValueError, RecursionError):
        raise OptionError(
            f"{name} is not a JSON document that `catmq export` writes"
        ) from None
    if not isinstance(document, dict):
        raise OptionError(f"{name} must hold a JSON object, as `catmq export` writes it")
    return document


EXPORT = Verb(
    "export", "write topics, groups and subscriptions as JSON", (PATTERN,), export
)
IMPORT = Verb(
    "import",
    "compare such JSON with this installation, and make it",
    (FILE, EXISTING, APPLY, TABLE),
    import_file,
)
