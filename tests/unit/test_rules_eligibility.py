"""Who may own queues: addresses, and how many members at once."""

from __future__ import annotations

import pytest

from metadata.errors import Invalid
from metadata.rules.membership.eligibility import Candidate, eligible_members
from metadata.rules.settings import GROUP, check_settings


def of(
    *addresses: str, allow: str = "", deny: str = "", most: int | None = None
) -> list[int]:
    """The eligible ones of members 1, 2, 3 … at these addresses."""
    members = [Candidate(number, address, 0) for number, address in enumerate(addresses, 1)]
    return eligible_members(members, allow=allow, deny=deny, most=most)


def test_without_limits_everybody_may() -> None:
    assert of("10.0.0.1", "", "::1") == [1, 2, 3]


def test_an_allow_list_shuts_out_everybody_else() -> None:
    assert of("10.0.0.1", "10.1.0.1", "", allow="10.0.0.0/16, 192.168.0.7") == [1]


def test_a_deny_list_wins_over_the_allow_list() -> None:
    assert of("10.0.0.1", "10.0.0.2", allow="10.0.0.0/24", deny="10.0.0.2") == [1]


def test_an_ipv4_address_in_ipv6_dress_is_the_same_address() -> None:
    assert of("::ffff:10.0.0.1", "2001:db8::1", allow="10.0.0.0/24") == [1]


def test_a_member_without_an_address_is_denied_by_no_list_but_allowed_by_none() -> None:
    assert of("", deny="10.0.0.1") == [1]
    assert of("", allow="10.0.0.1") == []


def test_the_first_that_joined_are_the_active_ones() -> None:
    assert of("10.0.0.1", "10.0.0.1", "10.0.0.1", most=2) == [1, 2]


def test_who_holds_queues_is_not_pushed_out_by_one_that_joined_earlier() -> None:
    members = [Candidate(1, "", 0), Candidate(2, "", 3), Candidate(3, "", 1)]
    assert eligible_members(members, allow="", deny="", most=2) == [2, 3]


def test_only_welcome_members_count_towards_the_limit() -> None:
    assert of("10.0.0.9", "10.0.0.1", "10.0.0.2", deny="10.0.0.9", most=1) == [2]


@pytest.mark.parametrize("wrong", ["10.0.0", "10.0.0.0/33", "example.org", 7, "1" * 2001])
def test_a_wrong_list_is_refused_by_name(wrong: object) -> None:
    with pytest.raises(Invalid) as caught:
        check_settings(GROUP, {"allow_addresses": wrong})
    assert [error.field for error in caught.value.errors] == ["allow_addresses"]


def test_a_limit_of_no_members_is_refused() -> None:
    with pytest.raises(Invalid):
        check_settings(GROUP, {"max_active_members": 0})
    assert check_settings(
        GROUP, {"max_active_members": None, "deny_addresses": "10.0.0.0/8 ::1"}
    )
