"""Sections of forms have every declared setting, each once."""

from __future__ import annotations

from metadata.rules.settings import GROUP, KEY, NODE, SUBSCRIPTION, TOPIC
from portal.templatetags.form_parts import SECTIONS


def test_every_setting_is_in_one_section() -> None:
    placed = [name for _title, names in SECTIONS for name in names]
    assert len(placed) == len(set(placed))
    assert set(placed) == {*TOPIC, *GROUP, *SUBSCRIPTION, *NODE, *KEY}
