"""The brokers that a client knows: which of a list it takes over, which it avoids, which
come next.
"""

from __future__ import annotations

from typing import Any

import pytest

from catmq_client.http import discovery
from catmq_client.http.discovery import MAX_LISTED, Brokers
from tests.support.answering import row

SEED = "http://a:8000"


def known(brokers: Brokers) -> set[str]:
    """All brokers, whether in service or not."""
    tried = [brokers.current]
    while (url := brokers.next_broker(tried)) is not None:
        tried.append(url)
    return set(tried)


def test_brokers_of_the_list_come_behind_the_seeds() -> None:
    brokers = Brokers([SEED])
    brokers.update_list([row("http://c:1"), row(SEED), row("http://b:1")])
    assert brokers.current == brokers.urls[0] == SEED
    assert sorted(brokers.urls) == [SEED, "http://b:1", "http://c:1"]


def test_brokers_that_left_the_list_are_forgotten_and_seeds_stay() -> None:
    brokers = Brokers([SEED, "http://z:1"])
    brokers.update_list([row("http://b:1"), row("http://c:1")])
    brokers.current = "http://b:1"
    brokers.update_list([row("http://c:1")])
    assert set(brokers.urls) == {SEED, "http://z:1", "http://c:1"}
    assert brokers.current in brokers.urls
    brokers.update_list([])
    assert brokers.urls == (SEED, "http://z:1")


def test_clients_that_found_the_same_brokers_do_not_all_turn_to_the_same_one() -> None:
    nexts = set()
    for _ in range(100):
        brokers = Brokers([SEED])
        brokers.update_list([row(f"http://b:{port}") for port in range(1, 5)])
        brokers.move_away(SEED, unreachable=True)
        nexts.add(brokers.current)
    assert len(nexts) == 4


def test_brokers_that_are_known_already_keep_their_places() -> None:
    brokers = Brokers([SEED])
    brokers.update_list([row(f"http://b:{port}") for port in range(1, 6)])
    before = brokers.urls
    brokers.update_list([row(f"http://b:{port}") for port in range(6, 0, -1)])
    assert brokers.urls == (*before, "http://b:6")


def test_no_more_brokers_are_taken_than_connections_are_kept_for() -> None:
    brokers = Brokers([SEED])
    gone = [row(f"http://gone:{port}", alive=False) for port in range(1, 5 * MAX_LISTED)]
    brokers.update_list([*gone, *(row(f"http://b:{port}") for port in range(1, 4))])
    assert len(known(brokers)) == 1 + MAX_LISTED
    assert len(brokers.urls) == 4


@pytest.mark.parametrize(
    ("seeds", "url"),
    [
        (["https://a"], "http://b"),
        (["http://a"], "https://b"),
        (["http://a"], "http://127.0.0.1:8000"),
        (["http://a"], "http://127.1.2.3"),
        (["http://a"], "http://127.1"),
        (["http://a"], "http://2130706433"),
        (["http://a"], "http://0.0.0.0:8000"),
        (["http://a"], "http://[::1]:8000"),
        (["http://a"], "http://[::]:8000"),
        (["http://a"], "http://[::ffff:127.0.0.1]"),
        (["http://a"], "http://localhost:8000"),
        (["http://a"], "http://LocalHost."),
        (["http://a"], "http://x.localhost"),
        (["http://127.0.0.1:8000"], "ftp://127.0.0.1:8001"),
        (["http://a"], "http://user:secret@b"),
        (["http://a"], "http://b:99999"),
        (["http://a"], "http://b:0"),
        (["http://a"], "http://b/?x=1"),
        (["http://a"], "http://b\n.evil"),
        (["http://a"], "http://b c"),
        (["http://a"], "http://[b"),
        (["http://a"], "http://"),
        (["http://a"], "b:8000"),
        (["http://a"], ""),
        (["http://a"], None),
        (["http://a"], 7),
    ],
)
def test_requests_and_the_key_in_them_do_not_go_there(seeds: list[str], url: Any) -> None:
    brokers = Brokers(seeds)
    brokers.update_list([row(url), row(f"{seeds[0]}/more")])
    assert brokers.urls == (seeds[0], f"{seeds[0]}/more")


@pytest.mark.parametrize(
    "seed", ["http://127.0.0.1:8000", "http://localhost:8000", "http://[::1]:8000"]
)
def test_a_client_on_the_brokers_own_machine_follows_to_loopback_addresses(
    seed: str,
) -> None:
    brokers = Brokers([seed])
    brokers.update_list([row("http://127.0.0.1:8001")])
    assert brokers.urls == (seed, "http://127.0.0.1:8001")


@pytest.mark.parametrize("rows", [["http://b"], [None, 7, []], [{}], [{"name": "b"}]])
def test_rows_that_mean_nothing_are_left_out(rows: list[Any]) -> None:
    brokers = Brokers([SEED])
    brokers.update_list([*rows, row("http://b:1")])
    assert brokers.urls == (SEED, "http://b:1")


AWAY = [{"state": "out"}, {"alive": False}, {"stopped_at_ms": 1}]


@pytest.mark.parametrize("away", AWAY)
@pytest.mark.parametrize("written", ["http://a:80", "http://A", "http://a/"])
def test_a_seed_that_is_out_or_silent_is_avoided(
    away: dict[str, Any], written: str
) -> None:
    brokers = Brokers(["http://a"])
    brokers.update_list([row(written, **away), row("http://b:1")])
    assert brokers.current == "http://b:1"
    assert brokers.urls == ("http://b:1",)


@pytest.mark.parametrize("away", AWAY)
def test_a_found_broker_that_is_out_or_silent_is_the_last_choice(
    away: dict[str, Any],
) -> None:
    brokers = Brokers([SEED, "http://z:1"])
    brokers.update_list([row("http://b:1", **away)])
    for url in (SEED, "http://z:1"):
        assert url in brokers.urls
        brokers.move_away(url, unreachable=True)
    assert brokers.urls == ("http://b:1",)
    assert brokers.current == "http://b:1"


def test_brokers_that_are_all_avoided_are_used_all_the_same() -> None:
    brokers = Brokers([SEED])
    brokers.update_list([row(SEED, alive=False), row("http://b:1", alive=False)])
    assert brokers.urls == (SEED, "http://b:1")
    assert brokers.current == SEED


def test_a_broker_that_came_back_under_another_name_is_in_service() -> None:
    for rows in ([row(SEED), row(SEED, alive=False)], [row(SEED, alive=False), row(SEED)]):
        brokers = Brokers([SEED])
        brokers.update_list([*rows, row("http://b:1")])
        assert set(brokers.urls) == {SEED, "http://b:1"}


def test_a_broker_that_was_pulled_in_again_is_used_again() -> None:
    brokers = Brokers([SEED])
    brokers.update_list([row(SEED, state="out"), row("http://b:1")])
    brokers.update_list([row(SEED), row("http://b:1")])
    assert brokers.urls == (SEED, "http://b:1")
    assert brokers.current == "http://b:1"


def test_the_last_broker_in_service_is_left_for_one_pulled_out_until_the_next_list() -> (
    None
):
    rows = [row(SEED), row("http://b:1", state="out")]
    brokers = Brokers([SEED])
    brokers.update_list(rows)
    brokers.move_away(SEED, unreachable=False)
    assert brokers.current == "http://b:1"
    brokers.update_list(rows)
    assert brokers.current == SEED


def test_a_broker_that_cannot_be_reached_rests_longer_each_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 1000.0
    monkeypatch.setattr(discovery.time, "monotonic", lambda: now)
    brokers = Brokers([SEED, "http://z:1"])
    rests = []
    for _ in range(8):
        brokers.move_away(SEED, unreachable=True)
        brokers.move_away(SEED, unreachable=True)  # another thread met the same failure
        assert brokers.urls == ("http://z:1",)
        assert brokers.next_broker(["http://z:1"]) is None
        began = now
        while brokers.urls == ("http://z:1",):
            now += 0.1
        rests.append(now - began)
    assert 0.5 <= rests[0] <= 1.1
    assert 5.0 <= rests[-1] <= 10.1
    brokers.mark_reached(SEED)
    brokers.move_away(SEED, unreachable=True)
    now += 1.0
    assert set(brokers.urls) == {SEED, "http://z:1"}


def test_brokers_that_all_rest_are_tried_each() -> None:
    brokers = Brokers([SEED, "http://z:1"])
    for url in (SEED, "http://z:1"):
        brokers.move_away(url, unreachable=True)
    assert brokers.urls == (SEED, "http://z:1")
    assert known(brokers) == {SEED, "http://z:1"}
