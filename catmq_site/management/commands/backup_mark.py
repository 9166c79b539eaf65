"""manage.py backup_mark: writes how far all databases are, for a comparison after a
restore.
"""

from __future__ import annotations

import os
import tempfile
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.core.management.base import CommandError

from catmq_site.management.base import RETRY_LATER, CatmqCommand
from messagestore.nodes import backup_marks
from metadata.errors import Invalid


class Command(CatmqCommand):
    help = (
        "Writes how far metadata and every node are: positions in their binary logs, log "
        "end offsets, committed offsets and counters, as JSON without secrets. Run it "
        "just before a backup; restore_check compares with it after a restore. Exit "
        "codes: 0 done; 3 a node could not be reached."
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
        unreachable = "; ".join(f"{node.name}: {node.why}" for node in mark.missing)
        # A mark without a node cannot show what that node lost.
        if unreachable and not options["allow_missing"]:
            raise CommandError(
                f"Nothing was written. Not reached: {unreachable}", returncode=RETRY_LATER
            )
        file, text = options["file"], backup_marks.encode(mark)
        if file == "-":
            self.stdout.write(text.decode(), ending="")
        else:
            try:
                write_file(Path(file), text)
            except OSError as error:
                raise Invalid.field("file", f"cannot be written: {error}") from None
            queues = sum(len(node.queues) for node in mark.nodes)
            self.stdout.write(f"{file}: {len(mark.nodes)} nodes, {queues} queues.")
        for node in mark.nodes:
            if node.binlog is not None and node.binlog.why:
                self.stderr.write(f"Node {node.name}: file and position of the binary log "
                                  "are not known: "
                                  f"{node.binlog.why}")  # fmt: skip
        if unreachable:
            self.stderr.write(f"Not reached, and not in the mark: {unreachable}")


def write_file(path: Path, text: bytes) -> None:
    """Write a file completely or not at all, readable by its owner only."""
    handle, draft_path = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(text)
            file.flush()
            # On disk before the rename, so that a crash leaves no empty file.
            os.fsync(file.fileno())
        os.replace(draft_path, path)
    except BaseException:
        os.unlink(draft_path)
        raise
