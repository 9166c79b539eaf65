"""A setting is declared once: models agree with it; requests, answers, forms and pages are
made from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import SimpleNamespace

import pytest
from django import forms
from django.db import models

from brokerapi.shapes.fields import Answer, Request
from metadata.models import ApiKey, ConsumerGroup, ConsumerGroupTopic, Topic
from metadata.rules.setting_types import Setting, Text, Whole, declared_settings, setting
from metadata.rules.settings import (
    GROUP,
    KEY,
    SUBSCRIPTION,
    TOPIC,
    TopicSettings,
    check_settings,
)
from portal.kit.setting_fields import setting_facts, with_settings


@dataclass(frozen=True, kw_only=True)
class WiderSettings(TopicSettings):
    """The settings of a topic, and one more."""

    compaction_lag_ms: int | None = setting(
        None,
        Whole(1, 5_000, "ms", null="never"),
        "Compaction lag",
        "Before a key's older messages may go.",
    )


WIDER = declared_settings(WiderSettings)


class Wish(Request):
    """A request with the settings."""

    settings = WIDER


class Shown(Answer):
    """An answer with them."""

    settings = WIDER


@with_settings(WIDER)
class WiderForm(forms.Form):
    """A form with them."""


def test_a_declared_setting_is_in_requests_answers_forms_and_pages() -> None:
    wish = Wish(data={"compaction_lag_ms": 20})
    assert wish.is_valid()
    assert dict(wish.validated_data) == {"compaction_lag_ms": 20}
    view = SimpleNamespace(
        **{name: one.default for name, one in WIDER.items()} | {"compaction_lag_ms": 20}
    )
    assert Shown.from_view(view)["compaction_lag_ms"] == 20
    field = WiderForm.base_fields["compaction_lag_ms"]
    assert (str(field.label), field.required, field.help_text) == (
        "Compaction lag, ms",
        False,
        "Before a key's older messages may go. Empty: never.",
    )
    assert not WiderForm({"compaction_lag_ms": "5001"}).is_valid()
    shown = {str(one.label): (one.value, one.kind) for one in setting_facts(WIDER, view)}
    assert shown["Compaction lag"] == (20, "lasting")


def test_a_declared_setting_is_checked() -> None:
    assert check_settings(WIDER, {"compaction_lag_ms": None}) == {"compaction_lag_ms": None}
    with pytest.raises(Exception, match="must be a whole number from 1 to 5000 or null"):
        check_settings(WIDER, {"compaction_lag_ms": 0})


@pytest.mark.parametrize(
    ("settings", "model"),
    [
        (TOPIC, Topic),
        (GROUP, ConsumerGroup),
        (SUBSCRIPTION, ConsumerGroupTopic),
        (KEY, ApiKey),
    ],
)
def test_models_agree_with_the_declaration(
    settings: Mapping[str, Setting], model: type[models.Model]
) -> None:
    for name, one in settings.items():
        column = model._meta.get_field(name)
        assert isinstance(column, models.Field)
        default = one.kind.written(one.default)
        assert column.get_default() == default, name
        assert column.null == (one.default is None), name
        if isinstance(one.kind, Text) and isinstance(column, models.CharField):
            assert column.max_length == one.kind.maximum, name
