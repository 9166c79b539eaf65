"""Nodes: the databases that hold messages."""

from __future__ import annotations

from django.http import HttpResponse

from brokerapi import answers, serializers
from brokerapi.endpoint import Call, Endpoint
from brokerapi.schema import operation, page_of
from brokerapi.wire.queries import ConfirmQuery, ListQuery
from messagestore import nodes
from metadata import nodes as node_rows


class Nodes(Endpoint):
    """/nodes"""

    @operation("listNodes", tag="nodes", query=ListQuery, answer=page_of("nodes", serializers.NodeAnswer))
    def get(self, call: Call) -> HttpResponse:
        """The nodes, by name."""
        page = node_rows.page(window=call.window(), actor=call.actor)
        return call.answer(answers.page("nodes", page, answers.node))

    @operation(
        "registerNode", tag="nodes", request=serializers.NodeCreate, answer=serializers.NodeAnswer, status=201
    )
    def post(self, call: Call) -> HttpResponse:
        """Registers a database as a node, once it has shown that it can serve as one."""
        asked = call.fields(serializers.NodeCreate)
        made = nodes.register(**asked, actor=call.actor)
        return call.created(answers.node(made), "nodes", made.name)


class Node(Endpoint):
    """/nodes/{node}"""

    @operation("showNode", tag="nodes", answer=serializers.NodeAnswer)
    def get(self, call: Call, node: str) -> HttpResponse:
        """One node."""
        return call.answer(answers.node(node_rows.named(name=node, actor=call.actor)))

    @operation("changeNode", tag="nodes", request=serializers.NodeChange, answer=serializers.NodeAnswer)
    def patch(self, call: Call, node: str) -> HttpResponse:
        """Opens, closes or takes a node out."""
        settings = call.fields(serializers.NodeChange)
        return call.answer(answers.node(nodes.update(name=node, settings=settings, actor=call.actor)))

    @operation("deleteNode", tag="nodes", query=ConfirmQuery, status=204)
    def delete(self, call: Call, node: str) -> HttpResponse:
        """Forgets a node without queues; the database itself is left alone."""
        node_rows.delete(name=node, confirm=call.confirm(), actor=call.actor)
        return call.done()
