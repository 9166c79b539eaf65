"""manage.py import_pmq: takes over topics, groups and subscriptions of PMQ or of the Java
CatMQ.
"""

from __future__ import annotations

import json
import os
from argparse import ArgumentParser
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from catmq_site.management.base import CatmqCommand, aligned
from catmq_site.pmq import tables
from catmq_site.pmq.mapping import Found, Mapping, Remark
from messagestore.topology import imports
from metadata.definitions.plans import Plan, Step
from metadata.errors import Invalid
from metadata.topics import send_tokens
from metadata.users import accounts

URL = "CATMQ_PMQ_URL"
OFFSETS = (
    "Offsets are not taken over: they count messages of the tables there, and the topics "
    "here begin empty. "
    "Each group begins at the first message that is sent here. Let a group read its topics "
    "there to the end "
    "before the last of its consumers moves."
)
COLUMNS = {"CREATE": "create", "SAME": "same", "DIFFERENT": "keep"}


class Command(CatmqCommand):
    help = (
        "Reads topics, queues, groups, subscriptions, offsets and owners from the metadata "
        "database of PMQ "
        "or of the Java CatMQ, and makes what is missing here. Without --apply it only "
        "reports. It may be "
        "repeated: what exists stays as it is. Nothing is written to the other database."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "--from",
            dest="url",
            metavar="URL",
            help="mysql://user:password@host:3306/database of their metadata; to keep the "
            "password out of "
            f"the process list, set {URL} instead",
        )
        parser.add_argument("--apply", action="store_true", help="make what is missing")
        parser.add_argument(
            "--document",
            type=Path,
            metavar="FILE",
            help="also write the definitions, to edit and `catmq import`",
        )

    def run(self, **options: Any) -> None:
        url = options["url"] or os.environ.get(URL, "")
        if not url:
            raise Invalid.field("--from", f"give it, or set {URL}")
        users = [one.name for one in accounts.list_users(actor=self.actor)]
        found = Mapping(tables.read(url), users).run()
        planned = self._without_conflicts(found)
        if options["document"]:
            options["document"].write_text(
                json.dumps(found.document, ensure_ascii=False, indent=2) + "\n"
            )
        apply = options["apply"]
        plan = self._take_in(found, dry_run=False) if apply else planned
        tokens = self._tokens(found, apply=apply)
        self.stdout.write(
            "\n".join([*report(found, plan, done=apply), *section("Send tokens", tokens)])
        )
        done = "Done." if apply else "Nothing was written. Make what is missing: --apply"
        self.stdout.write(f"\n{done}")

    def _take_in(self, found: Found, *, dry_run: bool) -> Plan:
        return imports.import_definitions(
            document=found.document, existing="keep", dry_run=dry_run, actor=self.actor
        )

    def _tokens(self, found: Found, *, apply: bool) -> list[list[str]]:
        """Take over the send tokens of topics that have none here; what is said of each
        topic.
        """
        said = []
        named = {one["name"] for one in found.document["topics"]}
        for topic, token in sorted(found.tokens.items()):
            if topic not in named:
                continue
            if not apply:
                said.append([topic, "would be taken over, if the topic has none here"])
            elif send_tokens.import_token(topic=topic, token=token, actor=self.actor):
                said.append(
                    [topic, "taken over: Java clients go on with it, others are refused"]
                )
            else:
                said.append([topic, "has its own here, which stay"])
        return said

    def _without_conflicts(self, found: Found) -> Plan:
        """Leave out of the document what cannot be made, and what needs it; return the plan
        of the rest.
        """
        while True:
            plan = self._take_in(found, dry_run=True)
            blocked = plan.steps_with("conflict")
            if not blocked:
                return plan
            for step in blocked:
                leave_out(found, step)


def leave_out(found: Found, step: Step) -> None:
    """Move an entry that cannot be made from the document to what is left out, and what
    needs it.
    """
    kind, name = step.entry.kind, step.entry.name
    part = found.document[f"{kind}s"]
    entry = next((one for one in part if name_of(one) == name), None)
    if entry is None:  # it needed another one
        return
    part.remove(entry)
    found.left_out.append(Remark(kind, name, step.problem))
    needing = [one for one in found.document["subscriptions"] if one.get(kind) == name]
    for one in needing:
        found.document["subscriptions"].remove(one)
        found.left_out.append(
            Remark("subscription", name_of(one), f"its {kind} is left out")
        )


def name_of(entry: dict[str, Any]) -> str:
    return str(entry["name"]) if "name" in entry else f"{entry['group']}/{entry['topic']}"


def report(found: Found, plan: Plan, *, done: bool) -> Iterator[str]:
    """Return the lines: what is made, what exists, what differs, what is left out, remarks,
    offsets.
    """
    kinds = ("topic", "group", "subscription")
    counts = [
        [f"{kind}s", *(str(count(plan, kind, one)) for one in COLUMNS.values())]
        for kind in kinds
    ]
    left = [str(sum(one.kind == kind for one in found.left_out)) for kind in kinds]
    yield from aligned(
        [
            ["", *COLUMNS, "LEFT OUT"],
            *([*line, out] for line, out in zip(counts, left, strict=True)),
        ]
    )
    made = [
        [one.entry.kind, one.entry.name, detail(one)] for one in plan.steps_with("create")
    ]
    yield from section("Made" if done else "Would be made", made)
    differs = [
        [one.entry.kind, one.entry.name, differences(one)]
        for one in plan.steps_with("keep")
    ]
    yield from section("Exists with other settings, which stay", differs)
    unfinished = [
        [one.entry.kind, one.entry.name, one.problem]
        for one in plan.steps_with("unfinished")
    ]
    yield from section("Not known yet", unfinished)
    yield from section("Left out", [[*one] for one in found.left_out])
    yield from section("Remarks", [[*one] for one in found.remarks])
    positions = [
        [one.group, one.topic, str(one.queues), str(one.consumed), str(one.readers)]
        for one in found.positions
    ]
    headed = (
        [["GROUP", "TOPIC", "QUEUES", "CONSUMED IDS", "CONSUMERS"], *positions]
        if positions
        else []
    )
    yield from section("Offsets there", headed)
    yield f"\n{OFFSETS}"


def count(plan: Plan, kind: str, outcome: str) -> int:
    return sum(one.entry.kind == kind and one.outcome == outcome for one in plan.steps)


def detail(step: Step) -> str:
    words = step.entry.words
    return f"{words['queues']} queues" if "queues" in words else str(words.get("mode", ""))


def differences(step: Step) -> str:
    return ", ".join(
        f"{one.field} {one.here!r} here, {one.there!r} there" for one in step.differences
    )


def section(title: str, lines: list[list[str]]) -> Iterator[str]:
    """Return a heading and aligned lines, nothing if there are none."""
    if lines:
        yield f"\n{title}:"
        yield from (f"  {line}" for line in aligned(lines))
