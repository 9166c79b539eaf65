"""catmq export, catmq import: definitions of topics, groups and subscriptions as JSON."""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from catmq_client.admin.shapes import ImportStep
from catmq_client.cli.connection import Brokers
from catmq_client.cli.output import Columns, field_columns, note, print_rows, show
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
    **field_columns("place kind name outcome"),
    "WHAT": lambda step: describe_step(step),
}
BLOCKED = ("conflict", "unfinished")


def describe_step(step: ImportStep) -> str:
    """Return the differences of an entry, or the reason why it is a conflict."""
    differences = (
        f"{difference['field']}: {as_json(difference['here'])} > {as_json(difference['there'])}"
        for difference in step["differences"]
    )
    return step["problem"] or ", ".join(differences)


def as_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def export_definitions(args: argparse.Namespace, brokers: Brokers) -> int:
    """Write the document to standard output."""
    document = brokers.admin().export(topic=args.topic)
    show(json.dumps(document, ensure_ascii=False, indent=2) + "\n")
    counts = ", ".join(
        f"{len(value)} {name}"
        for name, value in document.items()
        if isinstance(value, list)
    )
    note(f"exported: {counts}")
    return 0


def import_file(args: argparse.Namespace, brokers: Brokers) -> int:
    """Print the steps of an import. With `--apply`, make them unless a step is blocked."""
    document, admin = read_document(args.file), brokers.admin()
    # A dry run comes first, so that a blocked entry leaves everything unchanged.
    planned = admin.import_definitions(document, existing=args.existing, dry_run=True)[
        "steps"
    ]
    print_rows(planned, STEPS, args.output)
    blocked = [step for step in planned if step["outcome"] in BLOCKED]
    if blocked:
        note(f"catmq: nothing was done: {count_outcomes(blocked)}")
        return 1
    if not args.apply:
        note(f"{count_outcomes(planned)}; nothing was done. Do it: --apply")
        return 0
    done = admin.import_definitions(document, existing=args.existing)["steps"]
    note(f"done: {count_outcomes(done)}")
    return 0


def count_outcomes(steps: Sequence[ImportStep]) -> str:
    """Return the number of steps by outcome, as text.

    >>> count_outcomes([])
    'the document is empty'
    """
    counts = Counter(step["outcome"] for step in steps)
    return (
        ", ".join(f"{name} {count}" for name, count in counts.items())
        or "the document is empty"
    )


def read_document(name: str) -> dict[str, Any]:
    """Return the JSON object of a file. Raises OptionError, and OSError."""
    try:
        data = sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()
        # json.loads() of bytes accepts UTF-8 and UTF-16, with or without a byte order mark.
        # PowerShell's `>` writes UTF-16.
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
    # A number has thousands of digits, or lists are nested too deep.
    except (ValueError, RecursionError):
        raise OptionError(
            f"{name} is not a JSON document that `catmq export` writes"
        ) from None
    if not isinstance(document, dict):
        raise OptionError(f"{name} must hold a JSON object, as `catmq export` writes it")
    return document


EXPORT = Verb(
    "export",
    "write topics, groups and subscriptions as JSON",
    (PATTERN,),
    export_definitions,
)
IMPORT = Verb(
    "import",
    "compare such JSON with this installation, and make it",
    (FILE, EXISTING, APPLY, TABLE),
    import_file,
)
