"""manage.py restore_check: after a restore, compares metadata and all nodes with a mark that
backup_mark wrote before.
"""

from __future__ import annotations

import json
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.core.management.base import CommandError
from msgspec import to_builtins

from catmq_site.management.base import REFUSED, RETRY_LATER, CatmqCommand, align_columns
from messagestore.nodes import backup_marks, restore_checks
from messagestore.nodes.replica_inspection import delayed_loss
from messagestore.nodes.restore_checks import NodeCheck, RestoreCheck
from metadata.errors import Invalid
from metadata.installation import name_programs

HEADINGS = ("NODE", "STATE", "LOST", "QUEUES", "REASON")
METADATA_TEXTS = {
    "equal": "Metadata is as it was when the mark was made.",
    "ahead": "Metadata has changed since the mark was made.",
    "behind": "Metadata is older than the mark: topics, groups and settings made later are lost.",
    "other": "Metadata is that of another installation: check CATMQ_DATABASE_URL.",
}


class Command(CatmqCommand):
    help = (
        "Compares metadata and every node with a file of backup_mark, after a restore: "
        "which nodes are behind, how many messages are lost in each queue, which groups "
        "will be told, and what to do next. Changes nothing. Exit codes: 0 nothing to "
        "do; 1 something must be done; 3 a node could not be reached."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "file", type=Path, metavar="FILE", help="file that backup_mark wrote"
        )
        parser.add_argument("--json", action="store_true", help="print the result as JSON")
        parser.add_argument(
            "--raise-ids",
            action="store_true",
            help="after a restore of metadata: give no id again that nodes hold something of",
        )

    def run(self, **options: Any) -> None:
        try:
            mark_bytes = options["file"].read_bytes()
        except OSError as error:
            raise Invalid.field("file", f"cannot be read: {error}") from None
        mark = backup_marks.decode(mark_bytes)
        result = restore_checks.check(mark, actor=self.actor)
        if options["raise_ids"]:
            # Raise metadata's id counters above every id that a node still uses. Then compare
            # again, because this leaves less to do.
            restore_checks.raise_ids(result, actor=self.actor)
            result = restore_checks.check(mark, actor=self.actor)
        if options["json"]:
            self.stdout.write(
                json.dumps(check_as_json(result), indent=1, ensure_ascii=False)
            )
        else:
            self.stdout.write("\n".join(format_result(result, str(options["file"]))))
        # The exit codes are for scripts, the lines above for people.
        if not result.passed:
            raise CommandError("Something must be done.", returncode=REFUSED)
        if not result.complete:
            raise CommandError("Not every node could be compared.", returncode=RETRY_LATER)


def format_result(result: RestoreCheck, file: str) -> list[str]:
    """Return the table of nodes, the losses of queues and groups, and what to do next."""
    rows = [
        (node.name, node.state, f"{node.lost:,}", f"{len(node.queues):,}", node.why)
        for node in result.nodes
    ]
    lines = [*align_columns([HEADINGS, *rows]), "", METADATA_TEXTS[result.metadata.state]]
    for node in result.nodes:
        lines += _describe_losses(node)
    actions = [node.advice for node in result.nodes if node.advice]
    if result.metadata.ids:
        advice = (
            f"Before a broker starts, run manage.py restore_check {file} --raise-ids: nodes "
            "hold queues or groups of higher ids than metadata has given, and new ones "
            "would get their messages and positions."
        )
        actions.insert(0, name_programs(advice))
    return [*lines, *(f"Do: {action}" for action in actions)]


def _describe_losses(node: NodeCheck) -> list[str]:
    lines = []
    for queue in node.queues:
        if queue.lost:
            declared = (
                f", {queue.declared} of them declared as a gap" if queue.declared else ""
            )
            lines.append(
                f"{node.name}: {queue.topic} queue {queue.queue} ends at {queue.found}, it was "
                f"{queue.known}: "
                f"{queue.lost} messages are lost{declared}"
            )
    if node.delayed:
        lines.append(f"{node.name}: {delayed_loss(node.delayed)}")
    for group in node.groups:
        lines.append(
            f"{node.name}: group {group.group} gets lost_tail in {group.topic} queue "
            f"{group.queue}: it had "
            f"not read {group.unread} of the lost messages, and gets {group.again} again"
        )
    return lines


def check_as_json(result: RestoreCheck) -> dict[str, Any]:
    return {
        "passed": result.passed,
        "complete": result.complete,
        "metadata": to_builtins(result.metadata),
        "nodes": [
            to_builtins(node) | {"lost": node.lost, "advice": node.advice}
            for node in result.nodes
        ],
    }
