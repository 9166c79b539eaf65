"""Nodes and brokers: registration, examinations, accounts, moves."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers

from brokerapi.shapes.fields import Answer, Change, Flag, Number, Request, Text, texts
from messagestore.nodes.promotion import Outcome
from messagestore.nodes.promotion_plans import Plan


class NodeCreate(Request):
    """A database to hold message tables. The password is never shown again."""

    name = Text()
    kind = serializers.ChoiceField(choices=["normal", "failure"], default="normal")
    engine = serializers.ChoiceField(choices=["mysql", "sqlite"])
    host = Text(required=False)
    port = Number(required=False)
    database = Text(allow_blank=False, help_text="the schema on mysql, the file's path on sqlite")
    username = Text(required=False)
    password = Text(required=False, write_only=True)
    dedicated = Flag(required=False, help_text="true: used only when named")
    capacity_gb = Number(required=False, allow_null=True)
    unsafe = Flag(required=False, help_text="true: accept settings that lose messages in a crash")


class NodeChange(Change):
    """Changes to a node."""

    state = serializers.ChoiceField(choices=["read_write", "read_only", "offline"], required=False)
    dedicated = Flag(required=False)
    capacity_gb = Number(required=False, allow_null=True)
    replica_host = Text(required=False, allow_blank=True, help_text="serves pulls while the node is away")
    replica_port = Number(required=False, allow_null=True)


class NodeAnswer(Answer):
    """A node, without its password."""

    name = Text()
    kind = Text()
    engine = Text()
    host = Text()
    port = Number(allow_null=True)
    database = Text()
    username = Text()
    state = Text()
    dedicated = Flag()
    epoch = Number()
    capacity_gb = Number(allow_null=True)
    replica_host = Text()
    replica_port = Number(allow_null=True)
    reader_username = Text(help_text="with which jobs read it; empty if there is none")
    quarantined = Text(help_text="why no broker serves it; empty if they do")
    disk = Text(help_text="ok, low, or full: it stores nothing more")
    queues = Number()
    created_at_ms = Number()


class BrokerChange(Request):
    """Changes to a broker."""

    state = serializers.ChoiceField(choices=["in", "out"])


class BrokerAnswer(Answer):
    """A broker; clients use those that are alive and in."""

    name = Text()
    url = Text()
    state = Text(help_text="in, or out: it takes no work")
    alive = Flag(help_text="seen within 10 s, and it did not say that it stops")
    version = Text()
    started_at_ms = Number()
    last_seen_at_ms = Number()
    stopped_at_ms = Number(allow_null=True, help_text="when it said that it stops")


class NodeExamine(NodeCreate):
    """A database that may become a node."""

    name = None  # type: ignore[assignment]


class NodeAccount(Request):
    """An account of a node's database. The password is never shown again."""

    username = Text(allow_blank=False)
    password = Text(write_only=True)


class NodePromote(Request):
    """Target of a node's move; without a host, its replica."""

    host = Text(required=False)
    port = Number(required=False, allow_null=True, max_value=65_535)
    known_dead = Flag(default=False, help_text="true: the old primary is off for good, nobody is asked")
    dry_run = Flag(default=False)


class NodeAdopt(Request):
    """That what is at a node's address now is to be gone on with."""

    dry_run = Flag(default=False)


class FindingAnswer(Answer):
    """Finding about one thing."""

    about = Text()
    verdict = Text(help_text="ok, warn or bad")
    detail = Text()


class ExaminationAnswer(Answer):
    """Findings for and against a database as a node."""

    passed = Flag(help_text="whether it could be registered")
    findings = FindingAnswer(many=True)


class LostAnswer(Answer):
    """Messages that a group had not read and that are not there any more."""

    topic = Text()
    queue = Number()
    group = Text()
    messages = Number()
    as_of_ms = Number(
        allow_null=True, help_text="when its position was looked at last; what it read since is not known"
    )


class NodePlanAnswer(Answer):
    """Plan of a move, by what is known now."""

    target = Text()
    primary_answers = Flag(allow_null=True)
    copies = Flag(allow_null=True, help_text="the target still copies another server")
    brokers = Number(help_text="processes that must let go of the old primary if it cannot be fenced")


class NodeMoveAnswer(Answer):
    """Result that a move had, or would have (`plan`)."""

    dry_run = Flag()
    node = Text()
    state = Text(allow_null=True)
    epoch = Number(allow_null=True)
    queues = Number()
    gaps = Number(help_text="queues with a declared loss")
    messages = Number(help_text="known to be lost")
    lost = LostAnswer(many=True)
    notes = texts()
    plan = NodePlanAnswer(allow_null=True)


def planned(plan: Plan) -> dict[str, Any]:
    """Return the move that a plan would make."""
    return NodeMoveAnswer.of(plan, dry_run=True, state=None, epoch=None, notes=(), plan=plan)


def moved(done: Outcome) -> dict[str, Any]:
    """Return the move that was made."""
    return NodeMoveAnswer.of(done, dry_run=False, plan=None)
