"""Nodes and brokers: registration, examinations, accounts, moves."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers

from brokerapi.shapes.fields import (
    Answer,
    Change,
    Flag,
    Number,
    Request,
    Text,
    choice_of,
    texts,
    views,
)
from messagestore.nodes import registry
from messagestore.nodes.promotion import Outcome
from messagestore.nodes.promotion_plans import Plan
from messagestore.nodes.replica_inspection import Lost, delayed_loss
from metadata.nodes.node_rows import NodeView
from metadata.rules.membership.brokers import BrokerState
from metadata.rules.nodes import Engine, NodeKind
from metadata.rules.settings import NODE
from metadata.rules.tls import MODES

_AT_START = {name: NODE[name] for name in ("dedicated", "capacity_gb", "tls", "tls_ca")}


class NodeCreate(Request):
    """A database to hold message tables. The password is never shown again.

    Without `tls`, it is on if the server is on another machine and offers it, else off.
    """

    settings = _AT_START
    name = Text()
    kind = choice_of(NodeKind, default=NodeKind.NORMAL)
    engine = choice_of(Engine)
    host = Text(
        required=False,
        help_text="an address, or several with commas, of a cluster or of a primary and its "
        "replicas",
    )
    port = Number(required=False, help_text="of addresses without one; 3306 by default")
    database = Text(
        allow_blank=False, help_text="the schema on mysql, the file's path on sqlite"
    )
    username = Text(required=False)
    password = Text(required=False, write_only=True)
    unsafe = Flag(
        required=False, help_text="true: accept settings that lose messages in a crash"
    )


class NodeChange(Change):
    """Changes to a node."""

    settings = NODE


# Not the view: without its id, and with the version of the tables, which this broker knows.
class NodeAnswer(Answer):
    """A node, without its password."""

    view = NodeView
    view_fields = (
        "name kind engine host port database username state dedicated epoch capacity_gb "
        "replica_host replica_port tls tls_ca queues created_at_ms"
    )
    reader_username = Text(
        help_text="account that jobs use to read it; empty if there is none"
    )
    quarantined = Text(help_text="reason why brokers do not serve it; empty if they do")
    writer = Text(
        help_text="server of several that brokers write to; empty for a single server"
    )
    disk = Text(help_text="ok, low, or full (no more sends)")
    schema_version = Number(
        allow_null=True,
        help_text="version of its tables; null until this broker has asked the node",
    )
    upgrade_possible = Flag(help_text="manage.py upgrade_nodes can raise the version")

    @classmethod
    def from_view(cls, view: object, **more: Any) -> dict[str, Any]:
        """Return the answer for a node, with the version of its tables as this broker has
        read it.
        """
        node_id = view.id  # type: ignore[attr-defined]
        more["schema_version"] = registry.schema_version(node_id)
        return super().from_view(
            view, **more, upgrade_possible=registry.can_be_upgraded(node_id)
        )


class BrokerChange(Request):
    """Changes to a broker."""

    state = choice_of(BrokerState)


class NodeExamine(NodeCreate):
    """A database that may become a node."""

    name = None  # type: ignore[assignment]


class NodeAccount(Request):
    """An account of a node's database. The password is never shown again."""

    username = Text(allow_blank=False)
    password = Text(write_only=True)


class NodePromote(Request):
    """Target of a promotion; without a host, the node's replica."""

    host = Text(required=False)
    port = Number(required=False, allow_null=True, max_value=65_535)
    tls = serializers.ChoiceField(
        choices=[*MODES],
        required=False,
        help_text="encryption there; without it, that of the node",
    )
    tls_ca = Text(required=False, help_text=NODE["tls_ca"].help)
    known_dead = Flag(
        default=False,
        help_text="true: the old primary is off for good; do not wait for brokers to confirm",
    )
    dry_run = Flag(default=False)


class NodeAdopt(Request):
    """A request to adopt the database at a node's address."""

    dry_run = Flag(default=False)


# `detail` and `passed` are computed: the views have a text with values, and the findings.
class FindingAnswer(Answer):
    """Finding about one thing."""

    about = Text()
    verdict = Text(help_text="ok, warn or bad")
    detail = Text()


class ExaminationAnswer(Answer):
    """Findings for and against a database as a node."""

    passed = Flag(help_text="whether it could be registered")
    findings = FindingAnswer(many=True)


# Both show an Outcome or a Plan, in one shape.
class NodePlanAnswer(Answer):
    """Plan of a promotion or adoption."""

    target = Text()
    primary_answers = Flag(allow_null=True)
    copies = Flag(
        allow_null=True, help_text="the target still replicates from another server"
    )
    brokers = Number(
        help_text="broker processes that must confirm if the old primary cannot be fenced"
    )


class NodeMoveAnswer(Answer):
    """Result of a promotion or adoption, or its plan (`plan`)."""

    dry_run = Flag()
    node = Text()
    state = Text(allow_null=True)
    epoch = Number(allow_null=True)
    queues = Number()
    gaps = Number(help_text="number of queues with a gap")
    messages = Number(help_text="messages that are known to be lost")
    lost = views(Lost)
    notes = texts()
    plan = NodePlanAnswer(allow_null=True)


def plan_answer(plan: Plan) -> dict[str, Any]:
    notes = [delayed_loss(plan.delayed)] if plan.delayed else []
    return NodeMoveAnswer.from_view(
        plan, dry_run=True, state=None, epoch=None, notes=notes, plan=plan
    )


def move_answer(outcome: Outcome) -> dict[str, Any]:
    return NodeMoveAnswer.from_view(outcome, dry_run=False, plan=None)
