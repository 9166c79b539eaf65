"""manage.py import_pmq: imports topics, groups and subscriptions of PMQ or of the Java
CatMQ.
"""

from __future__ import annotations

import json
from argparse import ArgumentParser
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from catmq_site.management.base import CatmqCommand, align_columns, read_secret
from catmq_site.pmq import tables
from catmq_site.pmq.mapping import Definitions, Mapping, Remark
from messagestore.topology import imports
from metadata.definitions.plans import Plan, Step
from metadata.errors import Invalid
from metadata.rules.definitions import ExistingRule, ImportOutcome
from metadata.topics import send_tokens
from metadata.users import accounts

URL_VARIABLE = "CATMQ_PMQ_URL"
OFFSETS_NOTE = (
    "Offsets are not taken over: they count messages of the tables there, and the topics "
    "here begin empty. Each group begins at the first message that is sent here. Let a "
    "group read its topics there to the end before the last of its consumers moves."
)
OUTCOME_OF_COLUMN = {
    "CREATE": ImportOutcome.CREATE,
    "SAME": ImportOutcome.SAME,
    "DIFFERENT": ImportOutcome.KEEP,
}


class Command(CatmqCommand):
    help = (
        "Reads topics, queues, groups, subscriptions, offsets and owners from the "
        "metadata database of PMQ or of the Java CatMQ, and makes what is missing here. "
        "Without --apply it only reports. It may be repeated: what exists stays as it "
        "is. Nothing is written to the other database."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "--from",
            dest="url",
            metavar="URL",
            help="mysql://user:password@host:3306/database of their metadata; to keep the "
            "password out of "
            f"the process list, set {URL_VARIABLE} instead",
        )
        parser.add_argument("--apply", action="store_true", help="make what is missing")
        parser.add_argument(
            "--document",
            type=Path,
            metavar="FILE",
            help="also write the definitions, to edit and `catmq import`",
        )

    def run(self, **options: Any) -> None:
        # The variable keeps the password out of the process list.
        url = options["url"] or read_secret(URL_VARIABLE)
        if not url:
            raise Invalid.field("--from", f"give it, or set {URL_VARIABLE}")
        users = [user.name for user in accounts.list_users(actor=self.actor)]
        definitions = Mapping(tables.read_tables(url), users).run()
        plan_of_rest = self._remove_conflicts(definitions)
        if options["document"]:
            options["document"].write_text(
                json.dumps(definitions.document, ensure_ascii=False, indent=2) + "\n"
            )
        apply = options["apply"]
        # Without conflicts the import cannot be refused halfway.
        plan = self._import(definitions, dry_run=False) if apply else plan_of_rest
        tokens = self._import_tokens(definitions, apply=apply)
        self.stdout.write(
            "\n".join(
                [
                    *format_report(definitions, plan, done=apply),
                    *format_section("Send tokens", tokens),
                ]
            )
        )
        conclusion = (
            "Done." if apply else "Nothing was written. Make what is missing: --apply"
        )
        self.stdout.write(f"\n{conclusion}")

    def _import(self, definitions: Definitions, *, dry_run: bool) -> Plan:
        return imports.import_definitions(
            document=definitions.document,
            existing=ExistingRule.KEEP,
            dry_run=dry_run,
            actor=self.actor,
        )

    def _import_tokens(self, definitions: Definitions, *, apply: bool) -> list[list[str]]:
        """Import the send tokens of topics that have none here. Return a line for each
        topic.
        """
        lines = []
        topics = {topic_entry["name"] for topic_entry in definitions.document["topics"]}
        for topic, token in sorted(definitions.tokens.items()):
            if topic not in topics:
                continue
            if not apply:
                lines.append([topic, "would be taken over, if the topic has none here"])
            elif send_tokens.import_token(topic=topic, token=token, actor=self.actor):
                lines.append(
                    [topic, "taken over: Java clients go on with it, others are refused"]
                )
            else:
                lines.append([topic, "has its own here, which stay"])
        return lines

    def _remove_conflicts(self, definitions: Definitions) -> Plan:
        """Remove definitions that cannot be created, with their subscriptions. Return the
        plan of the rest.
        """
        # Removing an entry can leave others without their topic or group, so plan again.
        while True:
            plan = self._import(definitions, dry_run=True)
            conflicts = plan.steps_with(ImportOutcome.CONFLICT)
            if not conflicts:
                return plan
            for step in conflicts:
                remove_entry(definitions, step)


def remove_entry(definitions: Definitions, step: Step) -> None:
    """Move an entry that cannot be created from the document to `left_out`, with its
    subscriptions.
    """
    kind, name = step.entry.kind, step.entry.name
    entries = definitions.document[f"{kind}s"]
    entry = next((other for other in entries if entry_name(other) == name), None)
    if entry is None:  # removed before, with an entry that it needed
        return
    entries.remove(entry)
    definitions.left_out.append(Remark(kind, name, step.problem))
    dependents = [
        other for other in definitions.document["subscriptions"] if other.get(kind) == name
    ]
    for other in dependents:
        definitions.document["subscriptions"].remove(other)
        definitions.left_out.append(
            Remark("subscription", entry_name(other), f"its {kind} is left out")
        )


def entry_name(entry: dict[str, Any]) -> str:
    return str(entry["name"]) if "name" in entry else f"{entry['group']}/{entry['topic']}"


def format_report(definitions: Definitions, plan: Plan, *, done: bool) -> Iterator[str]:
    """Yield the lines of the report: entries that are created, exist, differ or are left
    out, remarks, and offsets.
    """
    kinds = ("topic", "group", "subscription")
    counts = [
        [
            f"{kind}s",
            *(
                str(count_steps(plan, kind, outcome))
                for outcome in OUTCOME_OF_COLUMN.values()
            ),
        ]
        for kind in kinds
    ]
    left_out_counts = [
        str(sum(remark.kind == kind for remark in definitions.left_out)) for kind in kinds
    ]
    yield from align_columns(
        [
            ["", *OUTCOME_OF_COLUMN, "LEFT OUT"],
            *([*line, out] for line, out in zip(counts, left_out_counts, strict=True)),
        ]
    )
    created = [
        [step.entry.kind, step.entry.name, describe_entry(step)]
        for step in plan.steps_with(ImportOutcome.CREATE)
    ]
    yield from format_section("Made" if done else "Would be made", created)
    kept_rows = [
        [step.entry.kind, step.entry.name, describe_differences(step)]
        for step in plan.steps_with(ImportOutcome.KEEP)
    ]
    yield from format_section("Exists with other settings, which stay", kept_rows)
    unfinished = [
        [step.entry.kind, step.entry.name, step.problem]
        for step in plan.steps_with(ImportOutcome.UNFINISHED)
    ]
    yield from format_section("Not known yet", unfinished)
    yield from format_section("Left out", [[*remark] for remark in definitions.left_out])
    yield from format_section("Remarks", [[*remark] for remark in definitions.remarks])
    positions = [
        [p.group, p.topic, str(p.queues), str(p.consumed), str(p.readers)]
        for p in definitions.positions
    ]
    positions_table = (
        [["GROUP", "TOPIC", "QUEUES", "CONSUMED IDS", "CONSUMERS"], *positions]
        if positions
        else []
    )
    yield from format_section("Offsets there", positions_table)
    yield f"\n{OFFSETS_NOTE}"


def count_steps(plan: Plan, kind: str, outcome: str) -> int:
    return sum(step.entry.kind == kind and step.outcome == outcome for step in plan.steps)


def describe_entry(step: Step) -> str:
    fields = step.entry.fields
    return (
        f"{fields['queues']} queues" if "queues" in fields else str(fields.get("mode", ""))
    )


def describe_differences(step: Step) -> str:
    return ", ".join(
        f"{difference.field} {difference.here!r} here, {difference.there!r} there"
        for difference in step.differences
    )


def format_section(title: str, lines: list[list[str]]) -> Iterator[str]:
    """Yield a heading and aligned lines, nothing if there are no lines."""
    if lines:
        yield f"\n{title}:"
        yield from (f"  {line}" for line in align_columns(lines))
