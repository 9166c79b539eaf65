"""The causes of a group's lag: each planted alone is named alone, and a healthy group has
none.
"""

from __future__ import annotations

import pytest
from msgspec import structs

from metadata.rules.groups.lag_causes import GroupFacts, Reader, ReadQueue, find_causes
from metadata.rules.groups.lag_trend import TrendState
from metadata.rules.membership.process_report import SlowHandler

TWO = (Reader("m1"), Reader("m2"))


def queues(*lags: int | None, topic: str = "orders") -> list[ReadQueue]:
    """Queues 1, 2, … that m1 and m2 own in turn."""
    return [
        ReadQueue(topic, n, lag, f"m{1 + n % 2}") for n, lag in enumerate(lags, start=1)
    ]


SLOW = GroupFacts(
    "falls_behind",
    queues(500, 480, 510),
    TWO,
    handled_per_s=20.0,
    pulled_per_s=20.0,
    sent_per_s=45.0,
    threads=4,
)
STALLED = structs.replace(SLOW, trend="stalled", handled_per_s=0.0)
HOT = structs.replace(SLOW, queues=queues(3, 900, 5))
PLANTED: dict[str, GroupFacts] = {
    "away": structs.replace(SLOW, trend="unknown", queues=queues(None, 0)),
    "corrupt": structs.replace(
        SLOW, queues=[structs.replace(queues(900)[0], corrupt=True), *queues(0, 3)]
    ),
    "paused": structs.replace(SLOW, trend="paused", stopped=True),
    "topics_paused": structs.replace(SLOW, trend="keeps_up", paused=["orders"]),
    "queues_paused": structs.replace(
        SLOW, trend="keeps_up", queues=[structs.replace(queues(900)[0], stopped=True)]
    ),
    "no_members": structs.replace(SLOW, trend="no_members", members=()),
    "standing_by": structs.replace(SLOW, members=[Reader("m1", active=False)]),
    "no_owner": structs.replace(SLOW, queues=[ReadQueue("orders", 1, 40), *queues(0, 2)]),
    "silent_member": structs.replace(
        SLOW, members=[Reader("m1"), Reader("m2", silent_ms=9_000)]
    ),
    "unfinished_leases": structs.replace(
        SLOW,
        mode="share",
        queues=[ReadQueue("orders", 1, 4_000, is_full=True)],
        trend="stalled",
    ),
    "no_pulls": structs.replace(STALLED, pulled_per_s=0.0),
    "blocked_in_order": structs.replace(STALLED, ordered=True),
    "nothing_finished": STALLED,
    "long_handler": structs.replace(
        STALLED, members=[*TWO, structs.replace(TWO[0], slowest=SlowHandler(1, 7, 90_000))]
    ),
    "hot_key": structs.replace(HOT, keys=["acme"] * 45 + ["other", None]),
    "hot_queue": structs.replace(HOT, keys=[f"key-{n}" for n in range(50)]),
    "failing": structs.replace(SLOW, dead_last_hour=10_000),
    "rebalancing": structs.replace(SLOW, rebalances=5),
    "reset": structs.replace(SLOW, trend="too_little_data", reset_by="ada"),
    "slow_handler": SLOW,
    "more_was_sent": structs.replace(SLOW, trend="catches_up", sent_per_s=5.0),
}


@pytest.mark.parametrize(("kind", "facts"), PLANTED.items(), ids=PLANTED)
def test_a_planted_cause_is_the_only_one_that_is_named(
    kind: str, facts: GroupFacts
) -> None:
    assert [one.kind for one in find_causes(facts)] == [kind]


@pytest.mark.parametrize("trend", ["keeps_up", "nothing_sent"])
@pytest.mark.parametrize(
    "odd",
    [
        {},
        {"dead_last_hour": 5_000},
        {"rebalances": 20},
        {"reset_by": "ada"},
        {"members": (Reader("m1"), Reader("m2"), Reader("m3", active=False))},
        {"queues": [*queues(30, 0, 1), structs.replace(queues(0)[0], stopped=True)]},
        {"queues": [], "members": ()},
        {"queues": [ReadQueue("orders", 1, 3), *queues(0, 2)]},  # handed over just now
        {"members": [Reader("m1", silent_ms=8_000), Reader("m2", silent_ms=8_000)]},
    ],
)
def test_nothing_is_wrong_with_a_healthy_group(
    trend: TrendState, odd: dict[str, object]
) -> None:
    healthy = GroupFacts(
        trend, queues(3, 0, 2), TWO, handled_per_s=40.0, pulled_per_s=41.0, sent_per_s=40.0
    )
    assert find_causes(structs.replace(healthy, **odd)) == []  # type: ignore[arg-type]


@pytest.mark.parametrize("pace", [0.0, None])
def test_some_dead_letters_of_the_hour_say_nothing_of_a_group_that_handles_none_now(
    pace: float | None,
) -> None:
    quiet = structs.replace(SLOW, trend="steady", handled_per_s=pace, dead_last_hour=20)
    assert find_causes(quiet) == []


def test_one_dead_letter_says_nothing_of_a_group_that_handles_little() -> None:
    facts = structs.replace(SLOW, trend="too_little_data", handled_per_s=0.002)
    assert find_causes(structs.replace(facts, dead_last_hour=1)) == []
    assert [one.kind for one in find_causes(structs.replace(facts, dead_last_hour=3))] == [
        "failing"
    ]


def test_few_messages_of_a_group_that_is_hardly_known_make_no_queue_hot() -> None:
    facts = structs.replace(SLOW, trend="too_little_data", queues=queues(25, 0, 0))
    assert find_causes(facts) == []
    assert [
        one.kind for one in find_causes(structs.replace(facts, trend="falls_behind"))
    ] == ["hot_queue"]


def test_several_causes_are_named_together_the_surest_first() -> None:
    broken = structs.replace(
        PLANTED["silent_member"], queues=[*SLOW.queues, ReadQueue("orders", 9, None)]
    )
    assert [one.kind for one in find_causes(broken)] == ["away", "silent_member"]
    shaky = structs.replace(PLANTED["hot_queue"], rebalances=7, dead_last_hour=10_000)
    assert [one.kind for one in find_causes(shaky)] == [
        "hot_queue",
        "failing",
        "rebalancing",
    ]


def test_a_slow_handler_is_told_how_long_a_message_takes_and_if_members_help() -> None:
    (few,) = find_causes(SLOW)
    assert few.figures["message_ms"] == 400.0 and few.figures["has_room"] == "yes"
    (full,) = find_causes(structs.replace(SLOW, queues=queues(500, 480), threads=None))
    assert full.figures["message_ms"] is None and full.figures["has_room"] == ""


def test_retries_are_not_taken_for_a_hot_queue() -> None:
    retry = ReadQueue("orders", 7, 900, "m1", is_retry=True)
    (one,) = find_causes(structs.replace(SLOW, queues=[*queues(3, 4), retry]))
    assert one.kind == "failing" and one.figures["retries"] == 900


def test_who_is_silent_but_holds_nothing_unread_is_no_cause() -> None:
    facts = structs.replace(
        SLOW, queues=[structs.replace(one, owner="m1") for one in SLOW.queues]
    )
    found = find_causes(
        structs.replace(facts, members=[Reader("m1"), Reader("m2", silent_ms=14_000)])
    )
    assert [one.kind for one in found] == ["slow_handler"]


def test_a_long_handler_is_named_beside_what_slows_all_members() -> None:
    members = [structs.replace(TWO[0], slowest=SlowHandler(1, 7, 90_000)), TWO[1]]

    assert [one.kind for one in find_causes(structs.replace(SLOW, members=members))] == [
        "long_handler",
        "slow_handler",
    ]


def test_a_handler_that_runs_for_a_few_seconds_is_no_cause() -> None:
    members = [structs.replace(TWO[0], slowest=SlowHandler(1, 7, 5_000)), TWO[1]]

    assert [one.kind for one in find_causes(structs.replace(STALLED, members=members))] == [
        "nothing_finished"
    ]
