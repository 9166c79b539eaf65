"""Signed consumer ids."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metadata.config import config
from metadata.db import consumer_ids
from metadata.db.consumer_ids import ConsumerId
from metadata.errors import Code, NotFound

IDS = st.integers(0, (1 << 63) - 1)
ISSUED = consumer_ids.issue(
    group_id=12, key_id=3, member_id=456, instance_id=78
)  # one for all examples: they must not differ


@given(IDS, IDS, IDS, IDS)
def test_an_issued_id_gives_its_parts_back(
    group: int, key: int, member: int, instance: int
) -> None:
    text = consumer_ids.issue(
        group_id=group, key_id=key, member_id=member, instance_id=instance
    )

    checked = consumer_ids.check(text)

    assert checked == ConsumerId(group, key, member, text, instance)
    assert len(text) <= 100
    assert text.isascii()


def test_two_ids_of_one_member_differ() -> None:
    first, second = (
        consumer_ids.issue(group_id=1, key_id=None, member_id=2) for _ in range(2)
    )

    assert first != second


@given(st.data())
def test_an_id_with_any_character_changed_is_refused(data: st.DataObject) -> None:
    text = ISSUED
    at = data.draw(st.integers(0, len(text) - 1))
    other = data.draw(st.sampled_from("abcXYZ019-_.").filter(lambda one: one != text[at]))

    with pytest.raises(NotFound) as caught:
        consumer_ids.check(text[:at] + other + text[at + 1 :])

    assert caught.value.code == Code.CONSUMER_NOT_FOUND


@pytest.mark.parametrize(
    "text", ["", "x", "1.2.3-4.5", "é" * 40, "1.0.1-" + "0" * 16 + "." + "A" * 22]
)
def test_what_was_never_issued_is_refused(text: str) -> None:
    with pytest.raises(NotFound):
        consumer_ids.check(text)


def test_an_id_of_an_earlier_secret_key_is_taken_as_long_as_that_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    text = consumer_ids.issue(group_id=1, key_id=2, member_id=3)
    after = replace(
        config, secret_key="another", secret_key_fallbacks=("x", config.secret_key)
    )
    monkeypatch.setattr("metadata.db.consumer_ids.config", after)
    assert consumer_ids.check(text).member_id == 3
    assert (
        consumer_ids.check(consumer_ids.issue(group_id=1, key_id=2, member_id=4)).member_id
        == 4
    )
    monkeypatch.setattr(
        "metadata.db.consumer_ids.config", replace(after, secret_key_fallbacks=("x",))
    )
    with pytest.raises(NotFound):
        consumer_ids.check(text)
