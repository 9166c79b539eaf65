"""The token bucket: over time no more than the rate, and every request passes in the end."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from metadata.rules.rates import BURST_S, Bucket, wait_s


def test_a_full_bucket_lets_a_second_s_worth_through_at_once() -> None:
    bucket = Bucket(level=float("inf"), at=0.0)
    assert wait_s(bucket, rate=10.0, amount=10, now=0.0) == 0
    bucket.level -= 10
    assert wait_s(bucket, rate=10.0, amount=1, now=0.0) == 0.1


def test_a_clock_that_stands_still_or_goes_back_fills_nothing() -> None:
    bucket = Bucket(level=0.0, at=5.0)
    assert wait_s(bucket, rate=10.0, amount=1, now=4.0) == 0.1


@given(
    rate=st.floats(0.5, 1e6),
    amounts=st.lists(st.integers(1, 100_000), min_size=1, max_size=50),
)
def test_who_waits_as_told_passes_and_nobody_gets_more_than_the_rate(
    rate: float, amounts: list[int]
) -> None:
    bucket, now, passed = Bucket(level=float("inf"), at=0.0), 0.0, 0
    for amount in amounts:
        wait = wait_s(bucket, rate=rate, amount=amount, now=now)
        now += wait
        assert wait_s(bucket, rate=rate, amount=amount, now=now) <= 1e-6 * max(1.0, now)
        # Before this one, no more went through than the rate and one filling, but for the
        # last one's debt.
        assert passed <= rate * (now + BURST_S) * 1.001 + 1 or passed - amounts[
            amounts.index(amount) - 1
        ] <= (rate * (now + BURST_S) * 1.001 + 1)
        bucket.level -= amount
        passed += amount
    assert bucket.level <= rate * BURST_S
