"""Form fields of actions, and the table of changed settings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from django import forms
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy as lazy

from portal.actions.action import Preview
from portal.kit.tables import Column, Columns, EmptyHint, code, simple_table, text
from portal.templatetags.formats import DASH


def password_field(
    label: Any, *, autocomplete: str = "new-password", **options: Any
) -> forms.CharField:
    """Return a password field. It keeps blanks, and no page sends its value back."""
    widget = forms.PasswordInput(attrs={"autocomplete": autocomplete})
    return forms.CharField(label=label, strip=False, widget=widget, **options)


def time_field(**options: Any) -> forms.DateTimeField:
    """Return an optional field for a date and time in UTC. A script shows it in the
    browser's time zone.
    """
    attrs = {"type": "datetime-local", "step": "1", "data-utc": lazy("Date and time")}
    widget = forms.DateTimeInput(attrs=attrs, format="%Y-%m-%dT%H:%M:%S")
    return forms.DateTimeField(
        label=lazy("Date and time, UTC"), required=False, widget=widget, **options
    )


def shown_only_for(
    field: forms.Field, choice: str, value: str, *, negate: bool = False
) -> forms.Field:
    """Return a field that a script hides while another field has a different value, or with
    `negate` this value.

    `choice` is the name of the other field. Without scripts the field is always shown.
    """
    field.widget.attrs["data-only"] = f"{choice}{'!' if negate else ''}={value}"
    return field


def pick_settings(fields: Mapping[str, Any], settings: Iterable[str]) -> dict[str, Any]:
    """Return the settings that a form has fields for."""
    return {name: fields[name] for name in settings if name in fields}


def preview_changes(
    form: type[forms.Form], before: Mapping[str, Any], after: Mapping[str, Any]
) -> Preview:
    """Return a preview of changed settings, with the values before and after."""
    columns: Columns[str] = [
        Column(_("Setting"), lambda name: text(form.base_fields[name].label)),
        Column(_("Now"), lambda name: code(display_value(form, name, before.get(name)))),
        Column(_("After"), lambda name: code(display_value(form, name, after[name]))),
    ]
    names = [name for name, value in after.items() if before.get(name) != value]
    no_changes = EmptyHint(_("Nothing changes."))
    return (
        Preview(table=simple_table(columns, names, no_changes))
        if names
        else Preview(effects=[no_changes.text])
    )


def display_value(form: type[forms.Form], name: str, value: Any) -> Any:
    """Return the value of a setting as a page shows it."""
    if isinstance(value, bool):
        return _("yes") if value else _("no")
    return field_value(form, name, value) if value not in (None, "", [], {}) else DASH


def field_value(form: type[forms.Form], name: str, value: Any) -> Any:
    """Return the value of a setting as it is typed in its field: a list with commas."""
    prepared = form.base_fields[name].prepare_value(value)
    return ", ".join(map(str, prepared)) if isinstance(prepared, list) else prepared
