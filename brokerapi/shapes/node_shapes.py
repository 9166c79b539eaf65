"""The shapes of what is asked and answered about nodes: examinations, accounts, moves (see management)."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from rest_framework import serializers

from brokerapi.shapes.fields import Flag, Number, Request, Text
from brokerapi.shapes.management import NodeCreate
from messagestore.nodes.preflight import Preflight
from messagestore.nodes.promotion import Outcome
from messagestore.nodes.promotion_plans import Plan
from messagestore.nodes.replica_inspection import Lost


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


class FindingAnswer(serializers.Serializer[Any]):
    """Finding about one thing."""

    about = Text()
    verdict = Text(help_text="ok, warn or bad")
    detail = Text()


class ExaminationAnswer(serializers.Serializer[Any]):
    """Findings for and against a database as a node."""

    passed = Flag(help_text="whether it could be registered")
    findings = FindingAnswer(many=True)


class LostAnswer(serializers.Serializer[Any]):
    """Messages that a group had not read and that are not there any more."""

    topic = Text()
    queue = Number()
    group = Text()
    messages = Number()
    as_of_ms = Number(
        allow_null=True, help_text="when its position was looked at last; what it read since is not known"
    )


class NodePlanAnswer(serializers.Serializer[Any]):
    """Plan of a move, by what is known now."""

    target = Text()
    primary_answers = Flag(allow_null=True)
    copies = Flag(allow_null=True, help_text="the target still copies another server")
    brokers = Number(help_text="processes that must let go of the old primary if it cannot be fenced")


class NodeMoveAnswer(serializers.Serializer[Any]):
    """Result that a move had, or would have (`plan`)."""

    dry_run = Flag()
    node = Text()
    state = Text(allow_null=True)
    epoch = Number(allow_null=True)
    queues = Number()
    gaps = Number(help_text="queues with a declared loss")
    messages = Number(help_text="known to be lost")
    lost = LostAnswer(many=True)
    notes = serializers.ListField(child=Text())
    plan = NodePlanAnswer(allow_null=True)


def examination(found: Preflight) -> dict[str, Any]:
    """See ExaminationAnswer."""
    findings = [{"about": one.about, "verdict": one.verdict, "detail": one.detail} for one in found.findings]
    return {"passed": found.passed, "findings": findings}


def planned(plan: Plan) -> dict[str, Any]:
    """See NodeMoveAnswer."""
    names = ("target", "primary_answers", "copies", "brokers")
    seen: dict[str, Any] = {
        "state": None,
        "epoch": None,
        "notes": [],
        "plan": {name: getattr(plan, name) for name in names},
    }
    return {"dry_run": True, **_counts(plan), **seen}


def moved(done: Outcome) -> dict[str, Any]:
    """See NodeMoveAnswer."""
    more = {"state": done.state, "epoch": done.epoch, "notes": list(done.notes), "plan": None}
    return {"dry_run": False, **_counts(done), **more}


def _counts(of: Plan | Outcome) -> dict[str, Any]:
    lost: list[dict[str, Any]] = [_lost(one) for one in of.lost]
    return {
        "node": of.node, "queues": of.queues, "gaps": of.gaps, "messages": of.messages, "lost": lost
    }  # fmt: skip


def _lost(one: Lost) -> dict[str, Any]:
    return asdict(one)
