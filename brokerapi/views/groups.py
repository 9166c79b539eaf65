"""Consumer groups and how far they are: create, list, show, change, delete; lag and resets."""

from __future__ import annotations

from django.http import HttpResponse

from brokerapi import answers, serializers
from brokerapi.endpoint import Call, Endpoint
from brokerapi.schema import operation, page_of
from brokerapi.wire.queries import ConfirmQuery, ListQuery
from messagestore import lag, resets
from metadata import groups


class Groups(Endpoint):
    """/groups"""

    @operation(
        "listGroups", tag="groups", query=ListQuery, answer=page_of("groups", serializers.GroupSummary)
    )
    def get(self, call: Call) -> HttpResponse:
        """The groups the key may do anything with, by name."""
        page = groups.page(window=call.window(), actor=call.actor)
        return call.answer(answers.page("groups", page, answers.group_summary))

    @operation(
        "createGroup",
        tag="groups",
        request=serializers.GroupCreate,
        answer=serializers.GroupAnswer,
        status=201,
    )
    def post(self, call: Call) -> HttpResponse:
        """Creates a group."""
        asked = call.fields(serializers.GroupCreate)
        name, mode = asked.pop("name"), asked.pop("mode")
        made = groups.create(name=name, mode=mode, settings=asked, actor=call.actor)
        return call.created(answers.group(made), "groups", name)


class Group(Endpoint):
    """/groups/{group}"""

    @operation("showGroup", tag="groups", answer=serializers.GroupAnswer)
    def get(self, call: Call, group: str) -> HttpResponse:
        """A group with its subscriptions and members."""
        return call.answer(answers.group(groups.describe(name=group, actor=call.actor)))

    @operation("changeGroup", tag="groups", request=serializers.GroupChange, answer=serializers.GroupAnswer)
    def patch(self, call: Call, group: str) -> HttpResponse:
        """Stops or starts a group, changes its settings."""
        settings = call.fields(serializers.GroupChange)
        return call.answer(answers.group(groups.update(name=group, settings=settings, actor=call.actor)))

    @operation("deleteGroup", tag="groups", query=ConfirmQuery, status=204)
    def delete(self, call: Call, group: str) -> HttpResponse:
        """Deletes a group without subscriptions and members."""
        groups.delete(name=group, confirm=call.confirm(), actor=call.actor)
        return call.done()


class Offsets(Endpoint):
    """/groups/{group}/offsets"""

    @operation("showOffsets", tag="groups", answer=serializers.OffsetsAnswer)
    def get(self, call: Call, group: str) -> HttpResponse:
        """How far the group is in each queue, and how much is unread."""
        return call.answer(answers.offsets(group, lag.group_offsets(group=group, actor=call.actor)))

    @operation(
        "resetOffsets", tag="groups", request=serializers.OffsetsReset, answer=serializers.OffsetsMoved
    )
    def patch(self, call: Call, group: str) -> HttpResponse:
        """Moves the positions of a stopped group in a topic; `dry_run` only says how."""
        asked = call.fields(serializers.OffsetsReset)
        topic, queues, dry_run = asked.pop("topic"), asked.pop("queues", None), asked.pop("dry_run")
        instance = asked.pop("instance", None)
        moves = resets.reset(
            group=group,
            topic=topic,
            queues=queues,
            instance=instance,
            target=resets.Target(**asked),
            dry_run=dry_run,
            actor=call.actor,
        )
        return call.answer({"dry_run": dry_run, "moves": answers.moves(moves)})
