"""Nodes: the databases that hold messages."""

from __future__ import annotations

from django.http import HttpResponse

from brokerapi.endpoint import Call, Endpoint
from brokerapi.schema import operation, page_of
from brokerapi.shapes import node_shapes
from brokerapi.shapes.base import ConfirmQuery, ListQuery
from brokerapi.shapes.node_shapes import (
    ExaminationAnswer,
    NodeAccount,
    NodeAdopt,
    NodeAnswer,
    NodeChange,
    NodeCreate,
    NodeExamine,
    NodeMoveAnswer,
    NodePromote,
)
from messagestore.nodes import preflight, promotion, promotion_plans, registry
from metadata.nodes import node_rows


class Nodes(Endpoint):
    @operation(
        "listNodes", tag="nodes", query=ListQuery, answer=page_of("nodes", NodeAnswer)
    )
    def get(self, call: Call) -> HttpResponse:
        """The nodes, by name."""
        page = node_rows.list_nodes(window=call.window(), actor=call.actor)
        return call.answer(NodeAnswer.page("nodes", page))

    @operation(
        "registerNode", tag="nodes", request=NodeCreate, answer=NodeAnswer, status=201
    )
    def post(self, call: Call) -> HttpResponse:
        """Tests a database and registers it as a node."""
        node_view = registry.register(**call.read_fields(NodeCreate), actor=call.actor)
        return call.created(NodeAnswer.from_view(node_view), "nodes", node_view.name)


class Node(Endpoint):
    @operation("showNode", tag="nodes", answer=NodeAnswer)
    def get(self, call: Call, node: str) -> HttpResponse:
        """Shows a node."""
        return call.answer(
            NodeAnswer.from_view(node_rows.find_node(name=node, actor=call.actor))
        )

    @operation("changeNode", tag="nodes", request=NodeChange, answer=NodeAnswer)
    def patch(self, call: Call, node: str) -> HttpResponse:
        """Opens or closes a node, or takes it offline."""
        settings = call.read_fields(NodeChange)
        return call.answer(
            NodeAnswer.from_view(
                registry.update(name=node, settings=settings, actor=call.actor)
            )
        )

    @operation("deleteNode", tag="nodes", query=ConfirmQuery, status=204)
    def delete(self, call: Call, node: str) -> HttpResponse:
        """Removes a node without queues from the registry. Its database is not changed."""
        node_rows.delete(name=node, confirm=call.confirmed_name(), actor=call.actor)
        return call.no_content()


class Examine(Endpoint):
    @operation("examineNode", tag="nodes", request=NodeExamine, answer=ExaminationAnswer)
    def post(self, call: Call, node: str) -> HttpResponse:
        """Tests a database as a node of this name, and returns the findings. Changes
        nothing.
        """
        fields = call.read_fields(NodeExamine)
        examination = preflight.examine(name=node, actor=call.actor, **fields)
        return call.answer(ExaminationAnswer.from_view(examination))


class Account(Endpoint):
    @operation("setNodeAccount", tag="nodes", request=NodeAccount, status=204)
    def patch(self, call: Call, node: str) -> HttpResponse:
        """Changes the account that brokers use for a node, after a test connection."""
        registry.set_account(name=node, actor=call.actor, **call.read_fields(NodeAccount))
        return call.no_content()


class Reader(Endpoint):
    @operation("setNodeReader", tag="nodes", request=NodeAccount, status=204)
    def patch(self, call: Call, node: str) -> HttpResponse:
        """Sets the account that jobs use to read a node, after a test connection."""
        registry.set_reader(name=node, actor=call.actor, **call.read_fields(NodeAccount))
        return call.no_content()

    @operation("deleteNodeReader", tag="nodes", status=204)
    def delete(self, call: Call, node: str) -> HttpResponse:
        """Removes the account that jobs use to read a node."""
        registry.set_reader(name=node, username="", password="", actor=call.actor)
        return call.no_content()


class Promote(Endpoint):
    @operation("promoteNode", tag="nodes", request=NodePromote, answer=NodeMoveAnswer)
    def post(self, call: Call, node: str) -> HttpResponse:
        """Promotes the replica of a node, which may take a minute. `dry_run` changes
        nothing.
        """
        fields = call.read_fields(NodePromote)
        target = {
            name: fields[name]
            for name in ("host", "port", "tls", "tls_ca")
            if name in fields
        }
        if fields["dry_run"]:
            plan = promotion_plans.promote(name=node, actor=call.actor, **target)
            return call.answer(node_shapes.plan_answer(plan))
        outcome = promotion.promote(
            name=node, known_dead=fields["known_dead"], actor=call.actor, **target
        )
        return call.answer(node_shapes.move_answer(outcome))


class Adopt(Endpoint):
    @operation("adoptNode", tag="nodes", request=NodeAdopt, answer=NodeMoveAnswer)
    def post(self, call: Call, node: str) -> HttpResponse:
        """Puts a node into service with the database at its address. `dry_run` changes
        nothing.
        """
        if call.read_fields(NodeAdopt)["dry_run"]:
            return call.answer(
                node_shapes.plan_answer(promotion_plans.adopt(name=node, actor=call.actor))
            )
        return call.answer(
            node_shapes.move_answer(promotion.adopt(name=node, actor=call.actor))
        )
