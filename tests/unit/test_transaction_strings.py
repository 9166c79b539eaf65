"""How the statements of a transaction are packed into strings.

tests/clusters/test_outcomes.py runs the strings on Galera, all store tests elsewhere.
"""

from __future__ import annotations

import pytest

from messagestore.engine.transaction_strings import Rendered, compound, packed, plain


def of_length(*lengths: int) -> list[Rendered]:
    return [Rendered(b"x" * length, has_rows=False) for length in lengths]


@pytest.mark.parametrize(
    ("lengths", "expected"),
    [
        ([], [[]]),  # COMMIT alone
        ([100, 100], [[100, 100]]),
        ([4_500, 4_500], [[4_500], [4_500]]),
        ([100, 100, 9_000, 100], [[100, 100], [9_000], [100]]),
        ([50_000], [[50_000]]),  # the server refuses it
        ([100, 50_000, 100], [[100], [50_000], [100]]),
    ],
)
def test_statements_are_packed_in_order(
    lengths: list[int], expected: list[list[int]]
) -> None:
    strings = packed(of_length(*lengths), max_packet=10_000)
    assert [[len(one.text) for one in string] for string in strings] == expected


@pytest.mark.parametrize("goes_on", [None, b"SET @same = 1"])
def test_nothing_follows_commit(goes_on: bytes | None) -> None:
    """An error of what follows would be taken for a transaction that is not stored."""
    statements = [Rendered(b"SELECT 1", has_rows=True), *of_length(5)]
    assert plain(statements, ends=True, goes_on=goes_on).text.endswith(b";COMMIT")
    assert compound(statements, ends=True, goes_on=goes_on).text.endswith(b"; COMMIT; END")
    assert b"COMMIT" not in compound(statements, ends=False, goes_on=goes_on).text


@pytest.mark.parametrize("count", [1, 7, 80])
@pytest.mark.parametrize("goes_on", [None, b"g" * 300])
def test_no_string_of_several_statements_exceeds_a_packet(
    count: int, goes_on: bytes | None
) -> None:
    """With all that is added to it. A longer one would be refused as a whole."""
    for string in packed(of_length(*[200] * count), max_packet=4_000):
        for compose in (plain, compound):
            assert len(compose(string, ends=True, goes_on=goes_on).text) <= 4_000
