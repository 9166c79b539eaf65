"""Changing settings that somebody else may be changing at the same time.

The form carries the values that it was made from. Only what its sender changed is saved.
What somebody else changed meanwhile stays as they set it; where both changed the same
setting, both values are shown, and nothing is saved before that was seen and confirmed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from django import forms
from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy as lazy

from metadata.db import access
from portal.actions.action import Action, Preview
from portal.actions.fields import display_value, field_value, preview_changes
from portal.kit.tables import (
    Column,
    Columns,
    EmptyHint,
    Table,
    Text,
    code,
    simple_table,
    text,
)

ORIGINAL_FIELD = "seen"
Values = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Merge:
    """Three versions of some settings: as the form was made from, as its sender wants them,
    as they are.
    """

    seen: Values
    mine: Values
    now: Values

    @property
    def changed(self) -> dict[str, Any]:
        """Settings that the sender changed and that are not so already.

        >>> Merge({"a": 1, "b": 1}, {"a": 2, "b": 1}, {"a": 1, "b": 5}).changed
        {'a': 2}
        """
        return {
            name: value
            for name, value in self.mine.items()
            if value != self.seen.get(name) and value != self.now.get(name)
        }

    @property
    def theirs(self) -> dict[str, Any]:
        """Settings that somebody else changed meanwhile, with their new values.

        >>> Merge({"a": 1, "b": 1}, {"a": 2, "b": 1}, {"a": 1, "b": 5}).theirs
        {'b': 5}
        """
        return {
            name: value
            for name, value in self.now.items()
            if value != self.seen.get(name, value)
        }

    @property
    def contested(self) -> bool:
        """Return True if both changed one setting, to different values."""
        return any(name in self.theirs for name in self.changed)


class OriginalValuesField(forms.CharField):
    """The values a form was made from, as JSON. Raises ValidationError."""

    widget = forms.HiddenInput

    def clean(self, value: Any) -> dict[str, Any]:
        try:
            found = json.loads(super().clean(value) or "{}")
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict):
            raise forms.ValidationError(_("Reload the page: the form is damaged."))
        return found


class EditFields(forms.Form):
    """Settings, with the values that the form was made from."""

    seen = OriginalValuesField(required=False)


class Edit(Action):
    """Changes settings; its form has `seen`. Subclasses say how settings are read and
    saved.
    """

    button = lazy("Save")

    def now(self) -> dict[str, Any]:
        """The settings as they are, each as its field cleans it; JSON can hold them."""
        raise NotImplementedError

    def save(self, changed: dict[str, Any]) -> None:
        raise NotImplementedError

    def saved(self) -> Text:
        return _("The settings of %s were changed.") % self.name

    def initial(self) -> dict[str, Any]:
        """The settings as they are, or as the URL wants them."""
        now = self.now()
        asked = {
            name: value
            for name, value in super().initial().items()
            if name != ORIGINAL_FIELD
        }
        return {**_filled(self.form_class, now, seen=now), **asked}

    def post(self, request: HttpRequest, **words: Any) -> HttpResponse:
        """As of any action; but what others changed since the preview is shown before
        anything is saved.
        """
        form = self.bind_form()
        if form.is_valid() and self._merge(form.cleaned_data).theirs:
            return self._show_preview(form)
        return super().post(request, **words)

    def preview(self, fields: dict[str, Any]) -> Preview:
        """Describe what changes, from what to what; and what others changed since the form
        was opened.

        Raises Forbidden for other owners unless the actor may do all that they get.
        """
        merge = self._merge(fields)
        if "owners" in merge.changed:
            access.require_ownership(self.actor, self.name, what=self.object_kind)
        if not merge.theirs:
            return preview_changes(self.form_class, merge.now, merge.changed)
        effects: list[Text] = [
            _(
                "Another user saved changes while you were editing. Settings that you did not "
                "change keep their values."
            )
        ]
        if merge.contested:
            effects.append(
                _(
                    "The same settings were changed to other values. Your values will replace them."
                )
            )
        return Preview(effects=effects, table=_three(self.form_class, merge))

    def run(self, fields: dict[str, Any]) -> Text:
        self.save(self._merge(fields).changed)
        return self.saved()

    def _merge(self, fields: Values) -> Merge:
        now = {name: _plain(value) for name, value in self.now().items()}
        mine = {name: _plain(fields[name]) for name in now}
        seen = {
            name: fields[ORIGINAL_FIELD].get(name, value) for name, value in now.items()
        }
        return Merge(seen, mine, now)

    def _show_preview(self, form: forms.Form) -> HttpResponse:
        """The preview; the form in it is made from the settings as they are now."""
        if not form.is_valid():
            return self._show_form(form, status=400)
        merge = self._merge(form.cleaned_data)
        rebased = self.form_class(
            _filled(self.form_class, {**merge.now, **merge.changed}, seen=merge.now)
        )
        return super()._preview_form(
            form, shown=rebased, status=409 if merge.theirs else 200
        )


def _filled(form: type[forms.Form], values: Values, *, seen: Values) -> dict[str, Any]:
    as_read = {name: _plain(value) for name, value in seen.items()}
    return {
        **{name: field_value(form, name, value) for name, value in values.items()},
        ORIGINAL_FIELD: json.dumps(as_read),
    }


def _plain(value: Any) -> Any:
    """A value that is the same whether it comes from a form or not: browsers change line
    ends and blanks.
    """
    return value.replace("\r\n", "\n").strip() if isinstance(value, str) else value


def _three(form: type[forms.Form], merge: Merge) -> Table:
    columns: Columns[str] = [
        Column(_("Setting"), lambda name: text(form.base_fields[name].label)),
        Column(
            _("When you opened it"),
            lambda name: code(display_value(form, name, merge.seen[name])),
        ),
        Column(_("Now"), lambda name: code(display_value(form, name, merge.now[name]))),
        Column(
            _("After"),
            lambda name: code(
                display_value(form, name, merge.changed.get(name, merge.now[name]))
            ),
        ),
    ]
    names = [name for name in merge.now if name in merge.changed or name in merge.theirs]
    return simple_table(columns, names, EmptyHint(_("Nothing changes.")))
