"""Share groups over HTTP: leases, reports, and what each state means."""

from __future__ import annotations

import threading
import uuid
from typing import Any

import pytest

from messagestore.pool import node_pools
from messagestore.shares import upkeep
from messagestore.tables import reader_sql
from messagestore.tables.shares import run_sql
from metadata.cache import snapshot
from tests.support.broker import Broker, problem
from tests.support.members import Member
from tests.support.sharing import ShareMember, about, bodies
from tests.support.waiting import until


def send(broker: Broker, *texts: str, topic: str = "single", **more: Any) -> None:
    """Sends messages."""
    messages = [{"body": text, **more} for text in texts]
    broker.ok("POST", f"/topics/{topic}/messages", {"messages": messages})


def end_leases(member: ShareMember, run: dict[str, Any]) -> None:
    """Lets the lease of a run be over, as if its time had passed."""
    group = snapshot.find_group(member.group)
    with node_pools.node_of(run["queue"]).writing() as session:
        run_sql.end_leases(
            session, group_id=group.id, queue=run["queue"], first=run["first"]
        )


def committed(member: ShareMember, queue: int) -> int:
    """The committed offset, brought up to date."""
    upkeep.commit_touched()
    group = snapshot.find_group(member.group)
    with node_pools.node_of(queue).reading() as session:
        found = reader_sql.read_positions(session, group_id=group.id, queues=[queue])[
            queue
        ].committed
    assert found is not None
    return found


def test_members_of_a_group_share_a_queue_and_each_message_is_leased_once(
    broker: Broker, queue: int
) -> None:
    one, two = ShareMember.join(broker), ShareMember.join(broker, name="s2")
    until(lambda: snapshot.find_group("mails").member_count == 2)
    send(broker, *"abcdef")
    first, second = one.lease(), two.lease()
    assert (
        bodies(first) + bodies(second)
        == list("abcdef")[: len(bodies(first) + bodies(second))]
    )
    assert len(bodies(first)) == 3  # of six for two
    (run,) = first
    assert (run["topic"], run["queue"], run["first"], run["end"]) == ("single", queue, 0, 3)
    assert (run["deliveries"], run["lease_ms"]) == (1, 30_000)


def test_a_finished_run_is_committed_and_comes_no_more(broker: Broker, queue: int) -> None:
    member = ShareMember.join(broker)
    send(broker, "a", "b")
    (run,) = member.lease()
    assert member.report(about(run, all=True)) == ["ok"]
    assert committed(member, queue) == 2
    assert member.lease() == []
    assert member.report(about(run, all=True)) == ["gone"]


def test_reports_are_recorded_before_more_is_leased(broker: Broker, queue: int) -> None:
    member = ShareMember.join(broker)
    send(broker, "a")
    (run,) = member.lease()
    send(broker, "b")
    told = member.share(done=[about(run, all=True)])
    assert [one["state"] for one in told["done"]] == ["ok"]
    assert bodies(told["runs"]) == ["b"]


def test_part_of_a_run_is_finished_and_the_rest_released(
    broker: Broker, queue: int
) -> None:
    member = ShareMember.join(broker)
    send(broker, *"abcde")
    (run,) = member.lease()
    report = about(run, finished=[[0, 2], [1, 2], [4, 5]], release=[2, 3])
    assert member.report(report, report) == ["ok", "gone"]
    assert committed(member, queue) == 2
    (again,) = member.lease()
    assert ((again["first"], again["end"]), bodies([again]), again["deliveries"]) == (
        (2, 4),
        ["c", "d"],
        2,
    )


def test_a_released_run_is_lost_to_its_former_owner(broker: Broker, queue: int) -> None:
    member = ShareMember.join(broker)
    send(broker, "a")
    (run,) = member.lease()
    assert member.report(about(run, release=[0])) == ["ok"]
    assert member.report(about(run, renew=True), about(run, all=True)) == ["lost", "lost"]
    assert bodies(member.lease()) == ["a"]


def test_a_late_report_counts_until_somebody_takes_the_run_over(
    broker: Broker, queue: int
) -> None:
    member, other = ShareMember.join(broker), ShareMember.join(broker, name="s2")
    send(broker, *"ab")
    runs = member.lease() + other.lease()
    late, taken = runs[0], runs[-1]
    end_leases(member, late)
    assert member.report(about(late, all=True)) == ["ok"]
    if taken is not late:
        end_leases(member, taken)
        (again,) = until(lambda: other.lease())
        assert (again["deliveries"], again["grant"] != taken["grant"]) == (2, True)
        assert member.report(about(taken, all=True), about(taken, renew=True)) == [
            "lost",
            "lost",
        ]


def test_a_renewed_lease_is_told_and_works_after_its_end(
    broker: Broker, queue: int
) -> None:
    member = ShareMember.join(broker, lease_ms=5_000)
    send(broker, "a")
    (run,) = member.lease()
    end_leases(member, run)
    told = broker.ok(
        "POST", f"{member.path}/share/done", {"done": [about(run, renew=True)]}
    )["done"]
    assert told == [about(run, state="ok", lease_ms=5_000)]
    assert member.lease() == []


@pytest.mark.parametrize(
    ("report", "says"),
    [
        (
            {"finished": [[0, 3]]},
            "finished: each range ends above its start, and lies between 0 and 2",
        ),
        ({"finished": [[1, 1]]}, "finished: "),
        ({"release": [2]}, "release: the offsets of the run are 0 to 1"),
        ({"unseen": [2]}, "unseen: the offsets of the run are 0 to 1"),
        ({"all": True, "release": [0]}, "all: leave out finished, release and unseen"),
        ({"grant": "0.0.0.0", "all": True}, "this grant is not of a run"),
        ({"grant": "no grant", "renew": True}, "this grant is not of a run"),
        (
            {"first": 1, "all": True},
            "this grant is not of a run that begins at this offset",
        ),
    ],
)
def test_a_report_that_cannot_be_meant_is_named_invalid_and_the_others_count(
    broker: Broker, queue: int, report: dict[str, Any], says: str
) -> None:
    member = ShareMember.join(broker)
    send(broker, "a", "b")
    (run,) = member.lease()
    wrong = {**about(run), **report}
    told = broker.ok(
        "POST",
        f"{member.path}/share/done",
        {"done": [wrong, about(run, finished=[[0, 1]])]},
    )
    assert [one["state"] for one in told["done"]] == ["invalid", "ok"]
    assert told["done"][0]["detail"].startswith(says)
    assert committed(member, queue) == 1


def test_a_report_on_a_run_that_never_existed_is_gone(broker: Broker, queue: int) -> None:
    member = ShareMember.join(broker)
    assert member.report({"queue": queue, "first": 0, "grant": "5.0.a.1", "all": True}) == [
        "gone"
    ]
    assert member.report(
        {"queue": 10_000, "first": 0, "grant": "5.0.a.1", "renew": True}
    ) == ["gone"]


def test_a_call_whose_answer_was_lost_finds_its_runs_again(
    broker: Broker, queue: int
) -> None:
    member = ShareMember.join(broker, run_messages=2)
    send(broker, *"abcd")
    first, second = member.lease()
    told = member.share(recover=True, holding=[about(first)])
    (found,) = told["runs"]
    assert (found["grant"], found["recovered"]) == (second["grant"], True)
    assert "recovered" not in first


def test_after_a_reset_old_runs_are_gone_and_messages_come_again(
    broker: Broker, queue: int
) -> None:
    member = ShareMember.join(broker)
    send(broker, *"abc")
    (run,) = member.lease()
    assert member.report(about(run, all=True)) == ["ok"]
    send(broker, "d")
    (held,) = member.lease()
    broker.ok("PATCH", "/groups/mails/offsets", {"to": "offset", "offset": 1})
    assert bodies(until(lambda: member.lease())) == ["b", "c", "d"]
    assert member.report(about(held, all=True)) == ["gone"]


def test_a_waiting_call_gets_a_message_that_comes(broker: Broker, queue: int) -> None:
    member = ShareMember.join(broker)
    found: list[Any] = []
    waiting = threading.Thread(target=lambda: found.extend(member.lease(wait_ms=20_000)))
    waiting.start()
    send(broker, "a")
    waiting.join(10)
    assert bodies(found) == ["a"]


def test_a_waiting_call_gets_a_run_whose_member_left(broker: Broker, queue: int) -> None:
    member, other = ShareMember.join(broker), ShareMember.join(broker, name="s2")
    send(broker, "a")
    (run,) = member.lease()
    found: list[Any] = []
    waiting = threading.Thread(target=lambda: found.extend(other.lease(wait_ms=20_000)))
    waiting.start()
    broker.ok("DELETE", member.path)
    waiting.join(15)
    assert bodies(found) == ["a"]
    assert found[0]["deliveries"] == run["deliveries"] + 1


def test_what_no_application_got_is_delivered_again_and_the_lease_does_not_count(
    broker: Broker, queue: int
) -> None:
    member, other = ShareMember.join(broker), ShareMember.join(broker, name="s2")
    until(lambda: snapshot.find_group("mails").member_count == 2)
    send(broker, *"abcd")
    (run,) = member.lease()  # a and b
    assert member.report(about(run, release=[0], unseen=[1])) == ["ok"]
    assert member.report(about(run, release=[0], unseen=[1])) == ["gone"]  # repeated
    again = {
        text: one["deliveries"]
        for one in other.lease(max_messages=2)
        for text in bodies([one])
    }
    again |= {
        text: one["deliveries"]
        for one in other.lease(max_messages=2)
        for text in bodies([one])
    }
    assert (again["a"], again["b"]) == (2, 1)


def test_a_whole_run_that_no_application_got_has_a_grant_that_nobody_knew(
    broker: Broker, queue: int
) -> None:
    """Else a report that is repeated would end the lease of who has it by then."""
    member, other = ShareMember.join(broker), ShareMember.join(broker, name="s2")
    send(broker, "a")
    (first,) = member.lease()
    assert member.report(about(first, unseen=[0])) == ["ok"]
    assert member.report(about(first, unseen=[0])) == ["lost"], "it is not counted twice"
    (again,) = other.lease()
    assert (again["deliveries"], again["grant"] != first["grant"]) == (1, True)
    assert other.report(about(again, unseen=[0])) == ["ok"]
    (third,) = member.lease()
    assert other.report(about(again, unseen=[0])) == ["lost"]
    assert member.report(about(third, finished=[[0, 1]])) == ["ok"]


def test_a_stopped_group_gets_nothing_and_is_told_so(broker: Broker, queue: int) -> None:
    member = ShareMember.join(broker)
    send(broker, "a")
    broker.ok("PATCH", "/groups/mails", {"stopped": True})
    until(lambda: snapshot.find_group("mails").stopped)
    told = member.share()
    states = {one["state"] for one in told["queues"]}
    assert (told["runs"], states) == ([], {"stopped"})
    broker.ok("PATCH", "/groups/mails", {"stopped": False})
    assert bodies(until(lambda: member.lease())) == ["a"]


def test_too_many_runs_are_told_and_a_finished_one_makes_room(
    broker: Broker, queue: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("messagestore.shares.known_queues.MAX_RUNS", 2)
    monkeypatch.setattr("messagestore.shares.known_queues.BELIEVED_S", 0.0)
    member = ShareMember.join(broker, run_messages=1)
    send(broker, *"abc")
    runs = member.lease(max_messages=2)
    told = member.share()
    assert (told["runs"], told["queues"]) == (
        [],
        [{"queue": queue, "state": "runs_exhausted"}],
    )
    assert member.report(about(runs[0], all=True)) == ["ok"]
    assert bodies(member.lease(max_messages=1)) == ["c"]


def test_a_message_is_delivered_alone_from_the_third_time_on_and_dies_after_the_last(
    broker: Broker, queue: int, failure_node: str
) -> None:
    member = ShareMember.join(broker, max_deliveries=4)
    send(broker, "poison", "b")
    deliveries = []
    for _ in range(8):
        (run,) = until(lambda: member.lease())
        deliveries.append((bodies([run]), run["deliveries"]))
        if bodies([run]) == ["b"]:
            assert member.report(about(run, all=True)) == ["ok"]
            break
        end_leases(member, run)
    assert deliveries[:4] == [
        (["poison", "b"], 1),
        (["poison", "b"], 2),
        (["poison"], 3),
        (["poison"], 4),
    ]
    assert deliveries[-1] == (["b"], 3)

    def dead() -> list[Any]:
        found: list[Any] = broker.ok("GET", "/groups/mails/dead")["messages"]
        return found

    (letter,) = until(dead)
    assert letter["error"] == "LeaseLost: 4 leases ended without a result"
    until(lambda: committed(member, queue) == 2)


def test_a_lease_counts_as_a_delivery_once_its_member_says_that_it_began(
    broker: Broker, queue: int, failure_node: str
) -> None:
    member = ShareMember.join(broker, max_deliveries=3)
    send(broker, "poison")
    for n in (1, 2, 3):
        (run,) = until(lambda: member.lease(count_begun=True))
        assert (run["deliveries"], run.get("uncounted", False)) == (n, n > 1)
        begins = about(run, begun=True, delivery=n)
        assert member.report(begins, begins) == ["ok", "ok"], "it may be repeated"
        end_leases(member, run)
    (letter,) = until(lambda: broker.ok("GET", "/groups/mails/dead")["messages"])
    assert letter["error"] == "LeaseLost: 3 leases ended without a result"


def test_a_lease_that_ends_before_anything_began_counts_for_nothing(
    broker: Broker, queue: int, failure_node: str
) -> None:
    """A starved member has messages that it never begins, and its leases end."""
    member, other = (
        ShareMember.join(broker, max_deliveries=3),
        ShareMember.join(broker, name="s2"),
    )
    send(broker, "a")
    (run,) = member.lease(count_begun=True)
    assert member.report(about(run, renew=True, begun=False, delivery=1)) == ["ok"]
    end_leases(member, run)
    for starved in (other, member) * 3:
        (run,) = until(lambda: starved.lease(count_begun=True))  # noqa: B023
        assert (run["deliveries"], run["uncounted"]) == (1, True)
        end_leases(starved, run)
    (run,) = until(lambda: member.lease())
    assert run["deliveries"] == 1, (
        "a member that does not say when it begins counts each lease"
    )


def test_a_message_that_may_be_delivered_once_is_dead_only_after_it_began(
    broker: Broker, queue: int, failure_node: str
) -> None:
    member = ShareMember.join(broker, max_deliveries=1)
    send(broker, "a")
    for begins in (False, False, True):
        (run,) = until(lambda: member.lease(count_begun=True))
        assert (run["deliveries"], run["uncounted"]) == (1, True)
        if begins:
            assert member.report(about(run, begun=True, delivery=1)) == ["ok"]
        end_leases(member, run)
    (letter,) = until(lambda: broker.ok("GET", "/groups/mails/dead")["messages"])
    assert letter["error"] == "LeaseLost: 1 leases ended without a result"


def test_what_a_member_gives_back_counts_by_whether_it_began(
    broker: Broker, queue: int
) -> None:
    member = ShareMember.join(broker)
    send(broker, *"abc")
    (run,) = member.lease(count_begun=True)
    end_leases(member, run)
    (run,) = until(lambda: member.lease(count_begun=True))
    assert (run["deliveries"], run["uncounted"]) == (2, True)
    assert member.report(about(run, release=[0], unseen=[1], delivery=2)) == ["ok"]
    told = [
        (bodies([one]), one["deliveries"])
        for _ in range(2)
        for one in member.lease(max_messages=1)
    ]
    assert told == [(["a"], 3), (["b"], 2)], "a was delivered twice, b once"
    begins, does_not = (
        about(run, begun=True, delivery=2),
        about(run, unseen=[2], delivery=2),
    )
    assert member.report(begins, does_not) == ["ok", "ok"]
    assert [(bodies([one]), one["deliveries"]) for one in member.lease()] == [(["c"], 2)]


@pytest.mark.parametrize(
    "said",
    [{"begun": True}, {"begun": True, "delivery": 5}, {"release": [0], "delivery": 5}],
)
def test_a_delivery_that_did_not_come_with_the_run_is_refused(
    broker: Broker, queue: int, said: dict[str, Any]
) -> None:
    member = ShareMember.join(broker)
    send(broker, "a")
    (run,) = member.lease(count_begun=True)
    (told,) = broker.ok(
        "POST", f"{member.path}/share/done", {"done": [about(run, **said)]}
    )["done"]
    assert told["state"] == "invalid" and "deliver" in told["detail"]
    assert member.report(about(run, all=True)) == ["ok"]


def test_a_run_that_is_recovered_counts_when_its_member_begins(
    broker: Broker, queue: int
) -> None:
    member = ShareMember.join(broker)
    send(broker, "a")
    (first,) = member.lease(count_begun=True)
    (again,) = member.lease(count_begun=True, recover=True)
    assert (again["deliveries"], again.get("uncounted")) == (1, None), (
        "the first lease counts at once"
    )
    end_leases(member, first)
    (second,) = until(lambda: member.lease(count_begun=True))
    (again,) = member.lease(count_begun=True, recover=True)
    assert again["grant"] == second["grant"]
    assert (again["deliveries"], again["uncounted"]) == (2, True)


def test_a_failed_message_comes_again_from_the_retry_topic(
    broker: Broker, queue: int, failure_node: str
) -> None:
    member = ShareMember.join(broker)
    send(broker, "a", "b", "c")
    (run,) = member.lease()
    failed = [
        {
            "queue": queue,
            "grant": run["grant"],
            "offset": 0,
            "error": "ValueError: x",
            "delay_ms": 0,
        },
        {
            "queue": queue,
            "grant": run["grant"],
            "offset": 1,
            "error": "ValueError: y",
            "final": True,
        },
        {"queue": queue, "grant": "5.0.a.1", "offset": 2, "error": "?"},
    ]
    told = broker.ok("POST", f"{member.path}/failures", {"messages": failed})
    assert [one["offset"] for one in told["retried"]] == [0]
    assert [one["offset"] for one in told["dead"]] == [1]
    assert [(one["offset"], one["state"]) for one in told["refused"]] == [(2, "fenced")]
    assert member.report(about(run, all=True)) == ["ok"]
    (again,) = until(lambda: member.lease(), limit_s=15)
    assert (bodies([again]), again["topic"]) == (["a"], "mails_single_fail")
    assert again["messages"][0]["origin"]["offset"] == 0
    assert (again["origin_topic"], again["messages"][0]["attempt"]) == ("single", 1)


def test_only_wanted_tags_are_delivered_and_the_others_count_as_finished(
    broker: Broker, queue: int
) -> None:
    member = ShareMember.join(broker)
    broker.ok("PATCH", "/groups/mails/subscriptions/single", {"tags": "new"})
    until(lambda: snapshot.current().message_filter(snapshot.find_group("mails").id, queue))
    send(broker, "a", tag="new")
    send(broker, "b", "c", tag="old")
    send(broker, "d", tag="new")
    (run,) = member.lease()
    assert (bodies([run]), run["skipped"]) == (["a", "d"], [[1, 3]])
    assert member.report(about(run, finished=[[0, 1], [3, 4], [1, 3]])) == ["ok"]
    send(broker, "e", tag="old")
    assert member.lease() == []
    until(lambda: committed(member, queue) == 5)


def test_only_wanted_headers_are_delivered_and_the_others_count_as_finished(
    broker: Broker, queue: int
) -> None:
    member = ShareMember.join(broker)
    broker.ok(
        "PATCH", "/groups/mails/subscriptions/single", {"headers": {"region": ["eu", "us"]}}
    )
    until(lambda: snapshot.current().message_filter(snapshot.find_group("mails").id, queue))
    send(broker, "a", headers={"region": "eu"})
    send(broker, "b", "c", headers={"region": "asia"})
    send(broker, "d", headers={"region": "us"})
    (run,) = member.lease()
    assert (bodies([run]), run["skipped"]) == (["a", "d"], [[1, 3]])
    assert member.report(about(run, finished=[[0, 1], [3, 4], [1, 3]])) == ["ok"]
    send(broker, "e")
    assert member.lease() == []
    until(lambda: committed(member, queue) == 5)


def test_what_does_not_fit_into_an_answer_is_left_to_another_run(
    broker: Broker, queue: int
) -> None:
    member = ShareMember.join(broker)
    send(broker, *"abcd")  # so small that four of the next ones seem to fit
    (small,) = member.lease(max_messages=4)
    send(broker, *("x" * 1000 for _ in range(4)))
    (run,) = member.lease(max_bytes=2500)
    assert ([message["offset"] for message in run["messages"]], run["skipped"]) == (
        [4, 5],
        [[6, 8]],
    )
    (rest,) = until(lambda: member.lease())
    assert ([message["offset"] for message in rest["messages"]], rest["deliveries"]) == (
        [6, 7],
        1,
    )
    assert (
        member.report(*(about(one, all=True) for one in (small, run, rest))) == ["ok"] * 3
    )
    assert committed(member, queue) == 8


def test_rows_and_messagepack_are_answered_as_in_a_pull(broker: Broker, queue: int) -> None:
    member = ShareMember.join(broker)
    send(broker, "a")
    told = broker.packed("POST", f"{member.path}/share", {"topics": ["single"]})
    assert told["runs"][0]["messages"][0]["body_bytes"] == b"a"


def test_calls_of_other_modes_are_refused_by_name(broker: Broker, queue: int) -> None:
    shares, owns = ShareMember.join(broker), Member.join(broker, topics=["single"])
    for path, body in [("share", {}), ("share/done", {"done": []})]:
        problem(
            broker.call("POST", f"{owns.path}/{path}", body), 409, "group_settings_differ"
        )
    place = {"queue": queue, "epoch": 1}
    for path, body in [
        ("acquire", {"queues": [place]}),
        ("pull", {"generation": 0, "queues": [{**place, "offset": 0}]}),
        ("commit", {"offsets": [{**place, "offset": 0}]}),
    ]:
        problem(
            broker.call("POST", f"{shares.path}/{path}", body), 409, "group_settings_differ"
        )


def test_a_group_keeps_its_mode_and_settings(broker: Broker, queue: int) -> None:
    ShareMember.join(broker, lease_ms=5_000)
    member = {"name": "x", "incarnation": str(uuid.uuid4()), "sdk": "t"}
    for wrong in ({"mode": "clustering"}, {"lease_ms": 6_000}):
        refused = broker.call("POST", "/groups/mails/consumers", {**member, **wrong})
        problem(refused, 409, "group_settings_differ")
    for name, value in [
        ("lease_ms", 4_999),
        ("lease_ms", 3_600_001),
        ("run_messages", 0),
        ("max_deliveries", -1),
    ]:
        problem(broker.call("PATCH", "/groups/mails", {name: value}), 400, "invalid", name)
    problem(
        broker.call("PATCH", "/groups/mails", {"max_active_members": 1}),
        400,
        "invalid",
        "max_active_members",
    )
    ordered = broker.call("PATCH", "/groups/mails/subscriptions/single", {"ordered": True})
    problem(ordered, 400, "invalid", "ordered")
    assert broker.ok("GET", "/groups/mails")["lease_ms"] == 5_000


def test_a_topic_that_the_group_does_not_read_is_named(broker: Broker, queue: int) -> None:
    member = ShareMember.join(broker)
    refused = broker.call("POST", f"{member.path}/share", {"topics": ["single", "other"]})
    problem(refused, 404, "subscription_not_found")


def test_a_member_is_assigned_nothing_and_hears_the_settings_of_its_topics(
    broker: Broker, queue: int
) -> None:
    member = ShareMember.join(broker)
    told = until(lambda: (answer := member.heartbeat())["subscriptions"] and answer)
    assert (told["assigned"], told["revoked"], [*told["subscriptions"]]) == (
        [],
        [],
        ["single"],
    )
