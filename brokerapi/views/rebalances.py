"""Rebalances of a group: list the past, start a new rebalance."""

from __future__ import annotations

from django.http import HttpResponse

from brokerapi.endpoint import Call, Endpoint
from brokerapi.schema import operation, page_of
from brokerapi.shapes.base import NewestQuery
from brokerapi.shapes.offset_shapes import RebalanceMoves, RebalanceRequest
from metadata.membership import rebalance, rebalance_history
from metadata.membership.rebalance_history import RebalanceView


class Rebalances(Endpoint):
    @operation(
        "listRebalances",
        tag="groups",
        query=NewestQuery,
        answer=page_of("rebalances", RebalanceView),
    )
    def get(self, call: Call, group: str) -> HttpResponse:
        """The rebalances of a group, newest first, with cause, moved queues and pauses."""
        rebalances, next_id = rebalance_history.list_rebalances(
            group=group, actor=call.actor, **call.query_fields(NewestQuery)
        )
        return call.answer(
            {
                "rebalances": rebalances,
                "next": None if next_id is None else str(next_id),
            }
        )


class Rebalance(Endpoint):
    @operation("rebalance", tag="groups", request=RebalanceRequest, answer=RebalanceMoves)
    def post(self, call: Call, group: str) -> HttpResponse:
        """Rebalances a group now. `dry_run` changes nothing."""
        dry_run = call.read_fields(RebalanceRequest, manages=("group", group))["dry_run"]
        result = rebalance.rebalance_by_hand(group=group, dry_run=dry_run, actor=call.actor)
        return call.answer(RebalanceMoves.from_view(result, dry_run=dry_run))
