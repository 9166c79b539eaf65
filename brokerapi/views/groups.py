"""Consumer groups: create, list, show, change, delete; their lag and offset resets."""

from __future__ import annotations

from django.http import HttpResponse

from brokerapi.endpoint import Call, Endpoint
from brokerapi.schema import operation, page_of
from brokerapi.shapes import offset_shapes
from brokerapi.shapes.base import ConfirmQuery, ListQuery, NewestQuery
from brokerapi.shapes.group_shapes import (
    GroupAnswer,
    GroupChange,
    GroupCreate,
    GroupSummary,
)
from brokerapi.shapes.offset_shapes import (
    OffsetsAnswer,
    OffsetsMoved,
    OffsetsReset,
    OffsetsUndo,
)
from messagestore.consume import group_lag, offset_reset
from metadata.groups import groups, offset_resets
from metadata.groups.offset_resets import PastMove


class Groups(Endpoint):
    @operation(
        "listGroups", tag="groups", query=ListQuery, answer=page_of("groups", GroupSummary)
    )
    def get(self, call: Call) -> HttpResponse:
        """The groups on which the key has any right, by name."""
        page = groups.page(window=call.window(), actor=call.actor)
        return call.answer(GroupSummary.page("groups", page))

    @operation(
        "createGroup", tag="groups", request=GroupCreate, answer=GroupAnswer, status=201
    )
    def post(self, call: Call) -> HttpResponse:
        """Creates a group."""
        fields = call.read_fields(GroupCreate, manages=("group", ""))
        name, mode = fields.pop("name"), fields.pop("mode")
        group_view = groups.create(name=name, mode=mode, settings=fields, actor=call.actor)
        return call.created(GroupAnswer.from_view(group_view), "groups", name)


class Group(Endpoint):
    @operation("showGroup", tag="groups", answer=GroupAnswer)
    def get(self, call: Call, group: str) -> HttpResponse:
        """A group with its subscriptions and members."""
        return call.answer(
            GroupAnswer.from_view(groups.describe(name=group, actor=call.actor))
        )

    @operation("changeGroup", tag="groups", request=GroupChange, answer=GroupAnswer)
    def patch(self, call: Call, group: str) -> HttpResponse:
        """Pauses or resumes a group, or changes its settings."""
        settings = call.read_fields(GroupChange, manages=("group", group))
        return call.answer(
            GroupAnswer.from_view(
                groups.update(name=group, settings=settings, actor=call.actor)
            )
        )

    @operation("deleteGroup", tag="groups", query=ConfirmQuery, status=204)
    def delete(self, call: Call, group: str) -> HttpResponse:
        """Deletes a group without subscriptions and members."""
        groups.delete(name=group, confirm=call.confirmed_name(), actor=call.actor)
        return call.no_content()


class Offsets(Endpoint):
    @operation("showOffsets", tag="groups", answer=OffsetsAnswer)
    def get(self, call: Call, group: str) -> HttpResponse:
        """Return the committed offset and the lag of the group in each queue, and its
        trend.
        """
        return call.answer(
            offset_shapes.offsets_answer(
                group, *group_lag.standing(group=group, actor=call.actor)
            )
        )

    @operation("resetOffsets", tag="groups", request=OffsetsReset, answer=OffsetsMoved)
    def patch(self, call: Call, group: str) -> HttpResponse:
        """Resets the offsets of a group, also while it is running. `dry_run` changes
        nothing.
        """
        fields = call.read_fields(OffsetsReset, manages=("group", group))
        dry_run = fields.pop("dry_run")
        scope = {name: fields.pop(name, None) for name in ("topic", "queues", "instance")}
        target = offset_reset.Target(**fields)
        moves = offset_reset.reset(
            group=group, target=target, dry_run=dry_run, actor=call.actor, **scope
        )
        return call.answer(offset_shapes.moves_answer(moves, dry_run=dry_run))


class OffsetMoves(Endpoint):
    @operation(
        "listOffsetMoves",
        tag="groups",
        query=NewestQuery,
        answer=page_of("moves", PastMove),
    )
    def get(self, call: Call, group: str) -> HttpResponse:
        """Offset resets of a group, newest first."""
        page = offset_resets.list_moves(
            group=group, actor=call.actor, **call.query_fields(NewestQuery)
        )
        return call.answer({"moves": page.items, "next": page.next})


class UndoOffsets(Endpoint):
    @operation("undoOffsets", tag="groups", request=OffsetsUndo, answer=OffsetsMoved)
    def post(self, call: Call, group: str) -> HttpResponse:
        """Undoes an offset reset."""
        fields = call.read_fields(OffsetsUndo, manages=("group", group))
        dry_run, reset = fields["dry_run"], fields.get("reset")
        moves = offset_reset.undo(
            group=group, reset=reset, dry_run=dry_run, actor=call.actor
        )
        return call.answer(offset_shapes.moves_answer(moves, dry_run=dry_run))
