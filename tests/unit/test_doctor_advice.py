"""Each finding of the doctor says what is wrong, why it matters and what to do."""

from __future__ import annotations

import re

import pytest

from messagestore.doctor import advice
from messagestore.nodes import preflight

# Texts of a preflight that are no findings on a registered node.
GOOD = {
    "reached", "new_file", "tls_local", "tls_unverified", "tls_verified", "version", "direct",
    "text", "writable", "durable", "rights", "clock", "empty", "own", "schema", "normal",
    "failure", "capacity", "cluster", "semi_sync",
}  # fmt: skip
# Texts about a database that becomes a node, which the doctor does not examine.
NEW_NODES = {"no_directory", "taken", "strange", "first_failure", "same_server"}


@pytest.mark.parametrize("key", sorted(advice.ADVICE))
def test_a_finding_has_three_sentences_at_least(key: str) -> None:
    _, cause, why, remedy = advice.ADVICE[key]
    assert cause.endswith((".", "%(reason)s"))
    assert why.endswith(".")
    assert remedy.endswith(".")


@pytest.mark.parametrize("key", sorted(set(preflight.TEXTS) - GOOD - NEW_NODES))
def test_a_text_of_a_preflight_has_a_remedy_apart_from_what_is_wrong(key: str) -> None:
    cause, remedy = advice.split_preflight_text(preflight.TEXTS[key])
    assert cause
    assert advice.PREFLIGHT_REMEDIES.get(key, remedy)


def test_no_key_has_two_meanings() -> None:
    assert not set(advice.ADVICE) & set(preflight.TEXTS)
    assert set(advice.PREFLIGHT_REMEDIES) <= set(preflight.TEXTS)


def test_placeholders_of_a_remedy_are_among_those_of_its_kind() -> None:
    # A percent sign that is no placeholder would fail when the finding is shown.
    for kind in advice.ADVICE.values():
        for text in kind[1:]:
            text % dict.fromkeys(re.findall(r"%\((\w+)\)", text), 1)
