"""manage.py restore_check: compares metadata and all nodes with the mark of a backup."""

from __future__ import annotations

import json
from argparse import ArgumentParser
from dataclasses import asdict
from pathlib import Path
from typing import Any

from django.core.management.base import CommandError

from catmq_site.management.base import LATER, REFUSED, CatmqCommand, aligned
from messagestore.nodes import backup_marks, restore_checks
from messagestore.nodes.replica_inspection import delayed_loss
from messagestore.nodes.restore_checks import MetadataCheck, NodeCheck, RestoreCheck
from metadata.errors import Invalid

HEADINGS = ("NODE", "STATE", "LOST", "QUEUES", "REASON")
METADATA = {
    "equal": "Metadata is as it was when the mark was made.",
    "ahead": "Metadata has changed since the mark was made.",
    "behind": "Metadata is older than the mark: topics, groups and settings made later are lost.",
    "other": "Metadata is that of another installation: check CATMQ_DATABASE_URL.",
}


class Command(CatmqCommand):
    help = (
        "Compares metadata and every node with a file of backup_mark, after a restore: "
        "which nodes are "
        "behind, how many messages are lost in each queue, which groups will be told, and "
        "what to do next. "
        "Changes nothing. Exit codes: 0 nothing to do; 1 something must be done; 3 a node "
        "could not be "
        "reached."
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
            text = options["file"].read_bytes()
        except OSError as error:
            raise Invalid.field("file", f"cannot be read: {error}") from None
        mark = backup_marks.decode(text)
        found = restore_checks.check(mark, actor=self.actor)
        if options["raise_ids"]:
            restore_checks.raise_ids(found, actor=self.actor)
            found = restore_checks.check(mark, actor=self.actor)
        if options["json"]:
            self.stdout.write(json.dumps(as_json(found), indent=1, ensure_ascii=False))
        else:
            self.stdout.write("\n".join(shown(found, str(options["file"]))))
        if not found.passed:
            raise CommandError("Something must be done.", returncode=REFUSED)
        if not found.complete:
            raise CommandError("Not every node could be compared.", returncode=LATER)


def shown(found: RestoreCheck, file: str) -> list[str]:
    """The table of nodes, the losses of queues and groups, and what to do next."""
    rows = [
        (one.name, one.state, f"{one.lost:,}", f"{len(one.queues):,}", one.why)
        for one in found.nodes
    ]
    lines = [*aligned([HEADINGS, *rows]), "", METADATA[found.metadata.state]]
    for node in found.nodes:
        lines += _losses(node)
    todo = [one.advice for one in found.nodes if one.advice]
    return [*lines, *[f"Do: {one}" for one in [*_of_ids(found.metadata, file), *todo]]]


def _of_ids(metadata: MetadataCheck, file: str) -> list[str]:
    if not metadata.ids:
        return []
    return [
        f"Before a broker starts, run manage.py restore_check {file} --raise-ids: nodes "
        "hold queues or "
        "groups of higher ids than metadata has given, and new ones would get their "
        "messages and positions."
    ]


def _losses(node: NodeCheck) -> list[str]:
    lines = []
    for one in node.queues:
        if one.lost:
            declared = f", {one.declared} of them declared as a gap" if one.declared else ""
            lines.append(
                f"{node.name}: {one.topic} queue {one.queue} ends at {one.found}, it was "
                f"{one.known}: "
                f"{one.lost} messages are lost{declared}"
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


def as_json(found: RestoreCheck) -> dict[str, Any]:
    return {
        "passed": found.passed,
        "complete": found.complete,
        "metadata": asdict(found.metadata),
        "nodes": [
            asdict(one) | {"lost": one.lost, "advice": one.advice} for one in found.nodes
        ],
    }
