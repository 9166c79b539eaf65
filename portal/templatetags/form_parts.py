"""Sections of long forms, by the subjects of the settings."""

from __future__ import annotations

from django import forms, template
from django.forms.boundfield import BoundField

from portal.kit.setting_fields import SECTIONS
from portal.kit.tables import Text

register = template.Library()
SHORT = 5  # fields of a form that needs no sections


@register.filter
def sections(form: forms.Form) -> list[tuple[Text, list[BoundField]]]:
    """Return the visible fields below their titles; those of no section come first, below none."""
    fields = form.visible_fields()
    if len(fields) <= SHORT:
        return [("", fields)]
    titled = [(title, [one for one in fields if one.name in names]) for title, names in SECTIONS]
    known = {one.name for _title, found in titled for one in found}
    first: tuple[Text, list[BoundField]] = ("", [one for one in fields if one.name not in known])
    return [one for one in (first, *titled) if one[1]]
