"""What counts as flat: the judge of a soak, shown series that rise and that do not."""

from __future__ import annotations

import random

import pytest

from tests.support.trends import Limit, rising, slope, trend

FLAT = [(float(at), 100.0) for at in range(60)]


def series(value: object) -> list[tuple[float, float]]:
    return [(float(at), value(at)) for at in range(60)]  # type: ignore[operator]


def test_what_fills_in_the_first_half_and_stays_is_flat() -> None:
    filled = series(lambda at: min(at, 20) * 5.0)
    found = trend(filled)
    assert (found.rise, found.median, found.least, found.most) == (0.0, 100.0, 100.0, 100.0)


def test_a_steady_rise_is_told_with_its_amount() -> None:
    found = trend(series(lambda at: 100.0 + at))
    assert found.rise == pytest.approx(29.0), "the second half lasts 29 s, one more in each"
    assert str(found) == "144.5 (130.0 to 159.0), trend +29.00"
    assert rising({"memory": found}, {"memory": Limit(10.0)}) == ["memory"]


def test_a_limit_may_be_a_share() -> None:
    found = {"memory": trend(series(lambda at: 100.0 + at))}
    assert rising(found, {"memory": Limit(10.0, 0.5)}) == []


def test_noise_and_single_outliers_are_no_trend() -> None:
    noise = random.Random(4)
    noisy = series(
        lambda at: 100.0 + noise.uniform(-5, 5) + (900.0 if at in (41, 58) else 0.0)
    )
    assert rising({"rate": trend(noisy)}, {"rate": Limit(4.0)}) == []


def test_a_leak_is_seen_through_noise() -> None:
    noise = random.Random(4)
    leaking = series(lambda at: 100.0 + at / 2 + noise.uniform(-3, 3))
    assert rising({"memory": trend(leaking)}, {"memory": Limit(5.0)})


def test_what_falls_is_not_told() -> None:
    assert (
        rising({"threads": trend(series(lambda at: 100.0 - at))}, {"threads": Limit(0.0)})
        == []
    )


def test_one_table_more_is_a_rise_when_none_is_allowed() -> None:
    made = series(lambda at: 50.0 + at // 8)
    assert rising({"tables": trend(made)}, {"tables": Limit(0.0)})


@pytest.mark.parametrize("points", [[], [(0.0, 1.0)], [(0.0, 1.0), (9.0, 2.0)]])
def test_too_few_samples_tell_nothing(points: list[tuple[float, float]]) -> None:
    with pytest.raises(ValueError, match="tell no trend"):
        trend(points)


def test_samples_of_one_moment_have_no_slope_between_them() -> None:
    assert slope([(1.0, 1.0), (1.0, 9.0)]) == 0.0
    assert slope(FLAT) == 0.0


def test_long_series_are_thinned() -> None:
    assert slope([(float(at), 2.0 * at) for at in range(10_000)]) == pytest.approx(2.0)
