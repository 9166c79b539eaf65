"""Parts that forms share: the people behind a topic or group, and how a change of settings is shown."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from django import forms
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy as lazy

from portal.actions.action import Preview
from portal.kit.tables import Column, Empty, Text, code, plain, text
from portal.templatetags.shapes import DASH


class PeopleFields(forms.Form):
    """Owners of a topic or group, who answer for it."""

    owners = forms.CharField(
        label=lazy("Owners"),
        required=False,
        max_length=1000,
        help_text=lazy("User names, separated by commas. They may manage it."),
    )
    department = forms.CharField(label=lazy("Department"), required=False, max_length=200)
    alarm_emails = forms.CharField(
        label=lazy("Alarm e-mails"),
        required=False,
        max_length=1000,
        help_text=lazy("Addresses that are told of its alarms, separated by commas."),
    )
    description = forms.CharField(
        label=lazy("Description"), required=False, max_length=10_000, widget=forms.Textarea(attrs={"rows": 3})
    )


class RateFields(forms.Form):
    """Limits of the rate of sends."""

    max_messages_per_s = forms.IntegerField(
        label=lazy("At most, messages a second"),
        required=False,
        min_value=1,
        max_value=1_000_000_000,
        help_text=lazy("Over all brokers; empty: no limit."),
    )
    max_bytes_per_s = forms.IntegerField(
        label=lazy("At most, bytes a second"),
        required=False,
        min_value=1,
        max_value=1 << 50,
        help_text=lazy("Of bodies and headers, over all brokers; empty: no limit."),
    )


def given(fields: Mapping[str, Any], *, without: Collection[str] = ()) -> dict[str, Any]:
    """A form's fields as settings of a verb."""
    return {name: value for name, value in fields.items() if name not in without}


def changes(form: type[forms.Form], before: Mapping[str, Any], after: Mapping[str, Any]) -> Preview:
    """List the settings that change, from what to what."""
    columns = (Column(_("Setting")), Column(_("Now")), Column(_("Then")))
    labels = form.base_fields
    rows = [
        (text(labels[name].label), code(shown(before.get(name))), code(shown(value)))
        for name, value in after.items()
        if before.get(name) != value
    ]
    if not rows:
        return Preview(effects=[_("Nothing changes.")])
    return Preview(table=plain(columns, rows, Empty(_("Nothing changes."))))


def shown(value: Any) -> Any:
    """A setting as people read it."""
    if isinstance(value, bool):
        return _("yes") if value else _("no")
    return written(value) if value not in (None, "", []) else DASH


def written(value: Any) -> Any:
    """A setting as it is typed: a list with commas."""
    return ", ".join(map(str, value)) if isinstance(value, list) else value


def numbers(words: str, message: Text) -> list[int]:
    """Whole numbers, separated by commas or blanks. Raises ValidationError."""
    found = words.replace(",", " ").split()
    if not all(word.isascii() and word.isdigit() and len(word) < 19 for word in found):
        raise forms.ValidationError(str(message))
    return [int(word) for word in found]
