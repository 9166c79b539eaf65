"""Rebalances of a group: what was done, and doing one now."""

from __future__ import annotations

from django.http import HttpResponse

from brokerapi.endpoint import Call, Endpoint
from brokerapi.schema import operation, page_of
from brokerapi.shapes.base import NewestQuery
from brokerapi.shapes.offset_shapes import RebalanceAnswer, RebalanceMoves, RebalanceRequest
from metadata.membership import rebalance, rebalance_history


class Rebalances(Endpoint):
    @operation(
        "listRebalances",
        tag="groups",
        query=NewestQuery,
        answer=page_of("rebalances", RebalanceAnswer),
    )
    def get(self, call: Call, group: str) -> HttpResponse:
        """The rebalances of a group, newest first, with cause, moved queues and pauses."""
        found, following = rebalance_history.list_rebalances(
            group=group, actor=call.actor, **call.query_fields(NewestQuery)
        )
        behind = None if following is None else str(following)
        return call.answer(
            {
                "rebalances": [RebalanceAnswer.from_view(one) for one in found],
                "next": behind,
            }
        )


class Rebalance(Endpoint):
    @operation("rebalance", tag="groups", request=RebalanceRequest, answer=RebalanceMoves)
    def post(self, call: Call, group: str) -> HttpResponse:
        """Rebalances a group now. `dry_run` changes nothing."""
        dry_run = call.read_fields(RebalanceRequest, manages=("group", group))["dry_run"]
        done = rebalance.rebalance_by_hand(group=group, dry_run=dry_run, actor=call.actor)
        return call.answer(RebalanceMoves.from_view(done, dry_run=dry_run))
