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
    """/nodes"""

    @operation("listNodes", tag="nodes", query=ListQuery, answer=page_of("nodes", NodeAnswer))
    def get(self, call: Call) -> HttpResponse:
        """The nodes, by name."""
        page = node_rows.page(window=call.window(), actor=call.actor)
        return call.answer(NodeAnswer.page("nodes", page))

    @operation("registerNode", tag="nodes", request=NodeCreate, answer=NodeAnswer, status=201)
    def post(self, call: Call) -> HttpResponse:
        """Registers a database as a node, once it has shown that it can serve as one."""
        asked = call.fields(NodeCreate)
        made = registry.register(**asked, actor=call.actor)
        return call.created(NodeAnswer.of(made), "nodes", made.name)


class Node(Endpoint):
    """/nodes/{node}"""

    @operation("showNode", tag="nodes", answer=NodeAnswer)
    def get(self, call: Call, node: str) -> HttpResponse:
        """One node."""
        return call.answer(NodeAnswer.of(node_rows.named(name=node, actor=call.actor)))

    @operation("changeNode", tag="nodes", request=NodeChange, answer=NodeAnswer)
    def patch(self, call: Call, node: str) -> HttpResponse:
        """Opens, closes or takes a node out."""
        settings = call.fields(NodeChange)
        return call.answer(NodeAnswer.of(registry.update(name=node, settings=settings, actor=call.actor)))

    @operation("deleteNode", tag="nodes", query=ConfirmQuery, status=204)
    def delete(self, call: Call, node: str) -> HttpResponse:
        """Forgets a node without queues; the database itself is left alone."""
        node_rows.delete(name=node, confirm=call.confirm(), actor=call.actor)
        return call.done()


class Examine(Endpoint):
    """/nodes/{node}/examine"""

    @operation("examineNode", tag="nodes", request=NodeExamine, answer=ExaminationAnswer)
    def post(self, call: Call, node: str) -> HttpResponse:
        """Says what speaks for and against a database as a node of that name; changes nothing."""
        asked = call.fields(NodeExamine)
        found = preflight.examine(name=node, actor=call.actor, **asked)
        return call.answer(ExaminationAnswer.of(found))


class Account(Endpoint):
    """/nodes/{node}/account"""

    @operation("setNodeAccount", tag="nodes", request=NodeAccount, status=204)
    def patch(self, call: Call, node: str) -> HttpResponse:
        """Changes the account with which brokers reach a node, once it was tried."""
        registry.set_account(name=node, actor=call.actor, **call.fields(NodeAccount))
        return call.done()


class Reader(Endpoint):
    """/nodes/{node}/reader"""

    @operation("setNodeReader", tag="nodes", request=NodeAccount, status=204)
    def patch(self, call: Call, node: str) -> HttpResponse:
        """Gives a node the account with which jobs read it, once it was tried."""
        registry.set_reader(name=node, actor=call.actor, **call.fields(NodeAccount))
        return call.done()

    @operation("deleteNodeReader", tag="nodes", status=204)
    def delete(self, call: Call, node: str) -> HttpResponse:
        """Takes the account away with which jobs read a node."""
        registry.set_reader(name=node, username="", password="", actor=call.actor)
        return call.done()


class Promote(Endpoint):
    """/nodes/{node}/promote"""

    @operation("promoteNode", tag="nodes", request=NodePromote, answer=NodeMoveAnswer)
    def post(self, call: Call, node: str) -> HttpResponse:
        """Moves a node to its replica, which may take a minute; `dry_run` only says what that would do."""
        asked = call.fields(NodePromote)
        to = {name: asked[name] for name in ("host", "port") if name in asked}
        if asked["dry_run"]:
            plan = promotion_plans.promote(name=node, actor=call.actor, **to)
            return call.answer(node_shapes.planned(plan))
        done = promotion.promote(name=node, known_dead=asked["known_dead"], actor=call.actor, **to)
        return call.answer(node_shapes.moved(done))


class Adopt(Endpoint):
    """/nodes/{node}/adopt"""

    @operation("adoptNode", tag="nodes", request=NodeAdopt, answer=NodeMoveAnswer)
    def post(self, call: Call, node: str) -> HttpResponse:
        """Goes on with what is at a node's address now; `dry_run` only says what that would do."""
        if call.fields(NodeAdopt)["dry_run"]:
            return call.answer(node_shapes.planned(promotion_plans.adopt(name=node, actor=call.actor)))
        return call.answer(node_shapes.moved(promotion.adopt(name=node, actor=call.actor)))
