"""Definitions: an import makes what an export says; what is refused, and what a cut-off run
leaves.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from messagestore.topology import (
    imports,
    queues,
    reader_rows,
    retry_topics,
    subscriptions,
    topics,
)
from metadata.actors import Actor
from metadata.db.clock import before, database_now
from metadata.definitions.exports import export
from metadata.definitions.plans import Plan
from metadata.errors import Code, Conflict, Forbidden, Invalid, NodeUnavailable, Unavailable
from metadata.groups import groups, subscription_rows
from metadata.models import AuditLog, ConsumerGroup, ConsumerGroupTopic, Topic
from metadata.topics import topic_rows
from tests.support.rows import ME

pytestmark = [pytest.mark.usefixtures("node"), pytest.mark.one_engine]
Json = dict[str, Any]


def world() -> Json:
    """Make two topics, a group of each mode and their subscriptions; return the export."""
    topics.create(
        name="orders", queues=2, settings={"retention_days": 3, "owners": "ada"}, actor=ME
    )
    topics.create(name="refunds", queues=1, settings={"retention_bytes": 1 << 30}, actor=ME)
    groups.create(name="billing", settings={"session_timeout_ms": 9_000}, actor=ME)
    groups.create(name="caches", mode="broadcasting", actor=ME)
    groups.create(name="workers", mode="share", settings={"lease_ms": 6_000}, actor=ME)
    tagged = {
        "tags": "new || paid",
        "headers": {"region": ["eu", "us"]},
        "retry_delays_s": [5, 10],
        "threads": None,
        "retries": 3,
    }
    subscriptions.create(
        group="billing", topic="orders", start="latest", settings=tagged, actor=ME
    )
    subscriptions.create(group="billing", topic="refunds", start="earliest", actor=ME)
    subscriptions.create(group="caches", topic="refunds", start="latest", actor=ME)
    document: Json = json.loads(json.dumps(export(actor=ME)))
    return document


def emptied(document: Json) -> Json:
    """Take everything down that a document defines, and return it."""
    for one in document["subscriptions"]:
        subscriptions.delete(group=one["group"], topic=one["topic"], actor=ME)
    for one in document["groups"]:
        groups.delete(name=one["name"], confirm=one["name"], actor=ME)
    for one in document["topics"]:
        topics.delete(name=one["name"], confirm=one["name"], actor=ME)
    return document


def outcomes(plan: Plan) -> dict[str, str]:
    return {one.entry.name: one.outcome for one in plan.steps}


def take_in(document: Json, **more: Any) -> Plan:
    return imports.import_definitions(document=document, actor=ME, **more)


def counts() -> tuple[int, int, int]:
    ready = Topic.objects.filter(state="ready", kind="normal").count()
    return (
        ready,
        ConsumerGroup.objects.filter(deleted_at=None).count(),
        ConsumerGroupTopic.objects.count(),
    )


def test_an_import_makes_what_was_exported_and_its_export_is_the_same() -> None:
    document = emptied(world())
    assert counts() == (0, 0, 0)
    plan = take_in(document)
    assert set(outcomes(plan).values()) == {"create"} and len(plan.steps) == 8
    assert export(actor=ME) == document
    made = subscription_rows.find_subscription(group="billing", topic="orders", actor=ME)
    assert (made.start, made.delivery.tags, made.delivery.retries) == (
        "latest",
        ("new", "paid"),
        3,
    )
    assert made.delivery.headers == (("region", ("eu", "us")),)
    assert len(topic_rows.find_topic(name="orders", actor=ME).queues) == 2
    named = (
        AuditLog.objects.filter(verb="create")
        .order_by("-pk")
        .values_list("actor_name", flat=True)
    )
    assert set(named[:8]) == {"test"}


def test_a_preview_makes_nothing_and_a_second_run_makes_nothing_twice() -> None:
    document = emptied(world())
    assert set(outcomes(take_in(document, dry_run=True)).values()) == {"create"}
    assert counts() == (0, 0, 0)
    take_in(document)
    rows = AuditLog.objects.count()
    assert set(outcomes(take_in(document)).values()) == {"same"}
    assert (counts(), AuditLog.objects.count()) == ((2, 3, 3), rows)


def test_a_pattern_exports_topics_with_their_readers_only() -> None:
    world()
    found = export(actor=ME, topic="ord*")
    assert [one["name"] for one in found["topics"]] == ["orders"]
    assert [one["name"] for one in found["groups"]] == ["billing"]
    assert [one["topic"] for one in found["subscriptions"]] == ["orders"]


def test_who_may_see_one_topic_exports_that() -> None:
    world()
    groups.create(name="look", casual=True, actor=ME)
    some = Actor(
        kind="key", name="k", rights={"browse": ("refunds", "caches", "look")}, key_id=1
    )
    found = export(actor=some)
    assert [one["name"] for part in ("topics", "groups") for one in found[part]] == [
        "refunds",
        "caches",
    ]


def test_drained_queues_are_not_exported() -> None:
    topics.create(name="orders", queues=3, actor=ME)
    queues.shrink(topic="orders", count=1, actor=ME)
    assert export(actor=ME)["topics"][0]["queues"] == 2


def changed(document: Json) -> Json:
    document["topics"][0]["retention_days"] = 9
    document["subscriptions"][0]["tags"] = "new,paid"  # the same filter
    document["subscriptions"][0]["headers"] = {"region": ["us", "eu"]}  # the same, too
    return document


def test_what_exists_with_other_settings_is_a_conflict_and_nothing_is_made() -> None:
    document = changed(world())
    document["groups"].append({"name": "another"})
    plan = take_in(document, dry_run=True)
    assert [(one.field, one.here, one.there) for one in plan.steps[0].differences] == [
        ("retention_days", 3, 9)
    ]
    assert [one.entry.name for one in plan.steps_with("conflict")] == ["orders"]
    with pytest.raises(Conflict) as caught:
        take_in(document)
    assert caught.value.code == Code.ALREADY_EXISTS
    (error,) = caught.value.errors
    assert error.field == "topics[0]" and "retention_days 3, not 9" in error.message
    assert not ConsumerGroup.objects.filter(name="another").exists()


def test_what_exists_is_kept_or_changed_if_told_so() -> None:
    document = changed(world())
    assert outcomes(take_in(document, existing="keep"))["orders"] == "keep"
    assert topic_rows.find_topic(name="orders", actor=ME).retention_days == 3
    assert outcomes(take_in(document, existing="change"))["orders"] == "change"
    assert topic_rows.find_topic(name="orders", actor=ME).retention_days == 9
    assert set(outcomes(take_in(document)).values()) == {"same"}


def test_queues_and_modes_are_not_changed_by_an_import() -> None:
    document = world()
    document["topics"][0]["queues"] = 5
    document["groups"][0]["mode"] = "broadcasting"
    with pytest.raises(Conflict) as caught:
        take_in(document, existing="change")
    assert [one.field for one in caught.value.errors] == ["topics[0]", "groups[0]"]
    assert (
        "queues 2, not 5: an import changes settings only" in caught.value.errors[0].message
    )


def test_what_a_document_leaves_out_is_not_compared() -> None:
    world()
    few = {"version": 1, "topics": [{"name": "orders"}], "groups": [{"name": "caches"}]}
    assert set(outcomes(take_in(few)).values()) == {"same"}


WRONG: list[tuple[Json, list[str]]] = [
    ({"topics": []}, ["version"]),
    ({"version": 2, "topics": "?"}, ["version"]),
    ({"version": True}, ["version"]),
    ({"version": 1, "queues": []}, ["queues"]),
    ({"version": 1, "topics": {}}, ["topics"]),
    ({"version": 1, "topics": ["orders"]}, ["topics[0]"]),
    ({"version": 1, "topics": [{}]}, ["topics[0].name"]),
    ({"version": 1, "topics": [{"name": 7}]}, ["topics[0].name"]),
    (
        {"version": 1, "topics": [{"name": "a b"}, {"name": "a_b_fail"}]},
        ["topics[0].name", "topics[1].name"],
    ),
    ({"version": 1, "topics": [{"name": "a", "queues": 0}]}, ["topics[0].queues"]),
    ({"version": 1, "topics": [{"name": "a", "queues": 300}]}, ["topics[0].queues"]),
    ({"version": 1, "topics": [{"name": "a", "colour": 1}]}, ["topics[0].colour"]),
    (
        {"version": 1, "topics": [{"name": "a", "retention_days": "7"}]},
        ["topics[0].retention_days"],
    ),
    (
        {"version": 1, "topics": [{"name": "a"}, {"name": "b"}, {"name": "A"}]},
        ["topics[2]"],
    ),
    ({"version": 1, "groups": [{"name": "g", "stopped": True}]}, ["groups[0].stopped"]),
    ({"version": 1, "groups": [{"name": "g", "mode": "fan"}]}, ["groups[0].mode"]),
    (
        {"version": 1, "groups": [{"name": "g", "mode": "share", "max_active_members": 2}]},
        ["groups[0].max_active_members"],
    ),
    (
        {"version": 1, "subscriptions": [{"group": "g", "topic": "t"}]},
        ["subscriptions[0].group"],
    ),
    (
        {
            "version": 1,
            "groups": [{"name": "g"}],
            "subscriptions": [{"group": "g", "topic": "t"}],
        },
        ["subscriptions[0].topic"],
    ),
    (
        {
            "version": 1,
            "groups": [{"name": "g"}],
            "subscriptions": [{"group": "G", "topic": "t"}],
        },
        ["subscriptions[0].group"],
    ),
    (
        {
            "version": 1,
            "topics": [{"name": "t"}],
            "groups": [{"name": "g", "mode": "share"}],
            "subscriptions": [{"group": "g", "topic": "t", "ordered": True}],
        },
        ["subscriptions[0].ordered"],
    ),
]


@pytest.mark.parametrize(("document", "places"), WRONG)
@pytest.mark.parametrize("dry_run", [True, False])
def test_wrong_documents_are_refused_with_the_places(
    document: Json, places: list[str], dry_run: bool
) -> None:
    with pytest.raises(Invalid) as caught:
        take_in(document, dry_run=dry_run)
    assert [one.field for one in caught.value.errors] == places
    assert counts() == (0, 0, 0)


@pytest.mark.parametrize("document", [None, [], "text", 7])
def test_a_document_that_is_no_object_is_refused(document: Any) -> None:
    with pytest.raises(Invalid, match="must be a JSON object"):
        take_in(document)


def test_another_spelling_of_what_is_there_is_a_conflict() -> None:
    world()
    with pytest.raises(Conflict, match="is spelled orders here"):
        take_in({"version": 1, "topics": [{"name": "Orders"}]}, existing="keep")


def test_a_name_that_another_pairs_retry_topic_has_is_a_conflict() -> None:
    topics.create(name="c", queues=1, actor=ME)
    groups.create(name="a_b", actor=ME)
    topic_rows.plan_topic(name="b_c", queues=1, actor=ME)
    Topic.objects.filter(name="b_c").update(name="a_b_c_fail")
    pair = {"version": 1, "subscriptions": [{"group": "a_b", "topic": "c"}]}
    with pytest.raises(Conflict, match="retry topic a_b_c_fail"):
        take_in(pair)


def test_the_rights_of_every_entry_are_needed_before_anything_is_made() -> None:
    own = Actor(kind="key", name="k", rights={"manage": ("mine-*",)}, key_id=1)
    document = {"version": 1, "topics": [{"name": "mine-a"}, {"name": "theirs"}]}
    with pytest.raises(Forbidden, match="manage on topic theirs"):
        imports.import_definitions(document=document, actor=own)
    owned = {"version": 1, "topics": [{"name": "mine-a", "owners": "ada"}]}
    with pytest.raises(Forbidden, match="owners"):
        imports.import_definitions(document=owned, actor=own)
    assert counts() == (0, 0, 0)
    imports.import_definitions(
        document={"version": 1, "topics": [{"name": "mine-a", "queues": 1}]}, actor=own
    )
    assert counts() == (1, 0, 0)


class Killed(BaseException):
    """The end of a process in the middle of an import."""


@pytest.mark.parametrize("at", range(8))
def test_an_import_that_was_killed_goes_on_when_it_is_repeated(
    at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process ends in the middle of entry `at`: rows are there, tables and reader rows
    are not.
    """
    document = emptied(world())
    left = {"count": at}

    def dying(verb: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **given: Any) -> Any:
            if left["count"] == 0:
                raise Killed
            left["count"] -= 1
            return verb(*args, **given)

        return call

    with monkeypatch.context() as patch:
        patch.setattr(topics, "make_tables", dying(topics.make_tables))
        patch.setattr(groups, "create", dying(groups.create))
        patch.setattr(reader_rows, "insert", dying(reader_rows.insert))
        patch.setattr(retry_topics, "try_to_make", lambda **_: False)
        with pytest.raises(Killed):
            take_in(document)
    if at not in (2, 3, 4):  # of a group nothing is there yet
        with pytest.raises(Unavailable, match="cut off") as caught:
            take_in(document)
        assert caught.value.retry_after_ms == 60_000
    long_ago = before(database_now(), seconds=61)
    Topic.objects.update(created_at=long_ago)
    ConsumerGroupTopic.objects.update(created_at=long_ago)
    take_in(document)
    assert export(actor=ME) == document


def test_a_second_import_in_the_middle_of_a_first_makes_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    document = emptied(world())
    refused: list[str] = []

    def between(verb: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **given: Any) -> Any:
            monkeypatch.undo()  # the second one runs as it is, and once
            with pytest.raises(Unavailable) as caught:
                take_in(document)
            refused.append(caught.value.errors[0].field)
            return verb(*args, **given)

        return call

    monkeypatch.setattr(topics, "make_tables", between(topics.make_tables))
    take_in(document)
    assert refused == ["topics[0]"] and export(actor=ME) == document
    emptied(document)
    monkeypatch.setattr(reader_rows, "insert", between(reader_rows.insert))
    take_in(document)
    assert refused == ["topics[0]", "subscriptions[0]"] and export(actor=ME) == document


def test_what_another_makes_after_the_plan_stops_the_import_and_a_repeat_finishes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    document = emptied(world())
    real = groups.create

    def late(**given: Any) -> Any:
        monkeypatch.undo()
        settings = {"session_timeout_ms": 9_000} if given["name"] == "billing" else {}
        real(name=given["name"], settings=settings, actor=ME)
        return real(**given)

    monkeypatch.setattr(groups, "create", late)
    with pytest.raises(Conflict) as caught:
        take_in(document)
    assert (
        "stopped at groups[0], group billing, after 2 of 8: Group billing exists"
        in caught.value.detail
    )
    take_in(document)
    assert export(actor=ME) == document


def test_a_node_that_fails_midway_names_the_place_and_a_repeat_finishes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    document = emptied(world())

    def away(queues: Any, *, topic: str) -> None:
        if topic == "refunds":
            raise NodeUnavailable("Node main does not answer.")
        real(queues, topic=topic)

    real = topics.make_tables
    with monkeypatch.context() as patch:
        patch.setattr(topics, "make_tables", away)
        with pytest.raises(NodeUnavailable) as caught:
            take_in(document)
    assert (
        "stopped at topics[1], topic refunds, after 1 of 8: Node main"
        in caught.value.detail
    )
    assert counts() == (1, 0, 0)
    take_in(document)
    assert export(actor=ME) == document
