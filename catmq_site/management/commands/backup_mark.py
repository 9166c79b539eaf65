"""manage.py backup_mark: writes down how far all databases are, beside a backup."""

from __future__ import annotations

import os
import tempfile
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.core.management.base import CommandError

from catmq_site.management.base import LATER, CatmqCommand
from messagestore.nodes import backup_marks
from messagestore.nodes.backup_marks import Mark
from metadata.errors import Invalid


class Command(CatmqCommand):
    help = (
        "Writes how far metadata and every node are: positions in their binary logs, log "
        "end offsets, "
        "committed offsets and counters, as JSON without secrets. Run it just before a backup; "
        "restore_check compares with it after a restore. Exit codes: 0 done; 3 a node "
        "could not be reached."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "--file",
            default="-",
            metavar="FILE",
            help="file to write; - for stdout (default)",
        )
        parser.add_argument(
            "--allow-missing",
            action="store_true",
            help="write the mark even if a node cannot be reached; the file names it",
        )

    def run(self, **options: Any) -> None:
        mark = backup_marks.take_mark(actor=self.actor)
        away = "; ".join(f"{one.name}: {one.why}" for one in mark.missing)
        if away and not options["allow_missing"]:
            raise CommandError(
                f"Nothing was written. Not reached: {away}", returncode=LATER
            )
        self._write(mark, options["file"])
        for one in mark.nodes:
            if one.binlog is not None and one.binlog.why:
                self.stderr.write(f"Node {one.name}: file and position of the binary log "
                                  "are not known: "
                                  f"{one.binlog.why}")  # fmt: skip
        if away:
            self.stderr.write(f"Not reached, and not in the mark: {away}")

    def _write(self, mark: Mark, file: str) -> None:
        text = backup_marks.encode(mark)
        if file == "-":
            self.stdout.write(text.decode(), ending="")
            return
        try:
            write(Path(file), text)
        except OSError as error:
            raise Invalid.field("file", f"cannot be written: {error}") from None
        queues = sum(len(one.queues) for one in mark.nodes)
        self.stdout.write(f"{file}: {len(mark.nodes)} nodes, {queues} queues.")


def write(path: Path, text: bytes) -> None:
    """Write a file whole or not at all, readable by its owner only."""
    handle, draft = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, path)
    except BaseException:
        os.unlink(draft)
        raise
