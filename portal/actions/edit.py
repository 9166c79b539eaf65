"""Editing of settings that another user may be changing at the same time.

The form carries the values that it was made from, so only the settings that its sender
changed are saved. Settings that another user changed meanwhile keep the other user's
values. If both changed the same setting, both values are shown and nothing is saved until
that is confirmed.
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

# Hidden form field with the values that the form was made from.
ORIGINAL_FIELD = "seen"
Values = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Merge:
    """Three versions of some settings: when the form was opened, as submitted, and as
    stored now.
    """

    opened: Values
    submitted: Values
    stored: Values

    @property
    def changed(self) -> dict[str, Any]:
        """Return the settings that the sender changed and whose stored value differs.

        >>> Merge({"a": 1, "b": 1}, {"a": 2, "b": 1}, {"a": 1, "b": 5}).changed
        {'a': 2}
        """
        return {
            name: value
            for name, value in self.submitted.items()
            if value != self.opened.get(name) and value != self.stored.get(name)
        }

    @property
    def changed_by_others(self) -> dict[str, Any]:
        """Return the settings that another user changed meanwhile, with their new values.

        >>> Merge({"a": 1, "b": 1}, {"a": 2, "b": 1}, {"a": 1, "b": 5}).changed_by_others
        {'b': 5}
        """
        return {
            name: value
            for name, value in self.stored.items()
            if value != self.opened.get(name, value)
        }

    @property
    def contested(self) -> bool:
        """Return True if both changed a setting, to different values."""
        return any(name in self.changed_by_others for name in self.changed)


class OriginalValuesField(forms.CharField):
    """The values that a form was made from, as JSON. Raises ValidationError."""

    widget = forms.HiddenInput

    def clean(self, value: Any) -> dict[str, Any]:
        try:
            values = json.loads(super().clean(value) or "{}")
        except (ValueError, RecursionError):
            values = None
        if not isinstance(values, dict):
            raise forms.ValidationError(_("Reload the page: the form is damaged."))
        return values


class EditFields(forms.Form):
    """Base of settings forms. `seen` holds the values that the form was made from."""

    seen = OriginalValuesField(required=False)


class Edit(Action):
    """An action that changes settings. Its form extends EditFields. Subclasses read and
    save the settings.
    """

    button = lazy("Save")

    def stored_settings(self) -> dict[str, Any]:
        """Return the stored settings, each as its field cleans it. JSON can hold the
        values.
        """
        raise NotImplementedError

    def save(self, changed: dict[str, Any]) -> None:
        """Store the changed settings."""
        raise NotImplementedError

    def saved_message(self) -> Text:
        return _("The settings of %s were changed.") % self.name

    def initial(self) -> dict[str, Any]:
        """Return the stored settings, or the values in the URL."""
        stored_settings = self.stored_settings()
        from_url = {
            name: value
            for name, value in super().initial().items()
            if name != ORIGINAL_FIELD
        }
        return {
            **_form_data(self.form_class, stored_settings, originals=stored_settings),
            **from_url,
        }

    def post(self, request: HttpRequest, **arguments: Any) -> HttpResponse:
        """Handle the form as any action does, but show the preview again if other users
        changed settings since.
        """
        form = self.bind_form()
        # Also for a confirmed form: the user has not seen that change yet.
        if form.is_valid() and self._merge(form.cleaned_data).changed_by_others:
            return self._show_preview(form)
        return super().post(request, **arguments)

    def preview(self, fields: dict[str, Any]) -> Preview:
        """Describe the changes, including those of other users since the form was opened.

        Raises Forbidden if the owners change and the actor lacks a right that owners get.
        """
        merge = self._merge(fields)
        if "owners" in merge.changed:
            access.require_ownership(self.actor, self.name, what=self.object_kind)
        if not merge.changed_by_others:
            return preview_changes(self.form_class, merge.stored, merge.changed)
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
        return Preview(effects=effects, table=_comparison_table(self.form_class, merge))

    def run(self, fields: dict[str, Any]) -> Text:
        self.save(self._merge(fields).changed)
        return self.saved_message()

    def _merge(self, fields: Values) -> Merge:
        """Compare the submitted fields with the stored settings and the values the form was
        made from.
        """
        stored_settings = {
            name: _normalize(value) for name, value in self.stored_settings().items()
        }
        submitted = {name: _normalize(fields[name]) for name in stored_settings}
        opened = {
            name: fields[ORIGINAL_FIELD].get(name, value)
            for name, value in stored_settings.items()
        }
        return Merge(opened, submitted, stored_settings)

    def _show_preview(self, form: forms.Form) -> HttpResponse:
        """Show the preview. Its form is made from the settings as they are stored now."""
        if not form.is_valid():
            return self._show_form(form, status=400)
        merge = self._merge(form.cleaned_data)
        # The form in the preview carries the values stored at this moment, so that a change
        # made between preview and confirmation is noticed, too.
        rebased_form = self.form_class(
            _form_data(
                self.form_class,
                {**merge.stored, **merge.changed},
                originals=merge.stored,
            )
        )
        return super()._preview_form(
            form,
            confirmed_form=rebased_form,
            status=409 if merge.changed_by_others else 200,
        )


def _form_data(
    form: type[forms.Form], values: Values, *, originals: Values
) -> dict[str, Any]:
    """Return form data with these values. `originals` are the values that the form is made
    from.
    """
    normalized = {name: _normalize(value) for name, value in originals.items()}
    return {
        **{name: field_value(form, name, value) for name, value in values.items()},
        ORIGINAL_FIELD: json.dumps(normalized),
    }


def _normalize(value: Any) -> Any:
    """Return a text without the differences that browsers add: line ends and outer blanks."""
    return value.replace("\r\n", "\n").strip() if isinstance(value, str) else value


def _comparison_table(form: type[forms.Form], merge: Merge) -> Table:
    """Return a table of the settings that anybody changed, in all versions."""
    columns: Columns[str] = [
        Column(_("Setting"), lambda name: text(form.base_fields[name].label)),
        Column(
            _("When you opened it"),
            lambda name: code(display_value(form, name, merge.opened[name])),
        ),
        Column(_("Now"), lambda name: code(display_value(form, name, merge.stored[name]))),
        Column(
            _("After"),
            lambda name: code(
                display_value(form, name, merge.changed.get(name, merge.stored[name]))
            ),
        ),
    ]
    names = [
        name
        for name in merge.stored
        if name in merge.changed or name in merge.changed_by_others
    ]
    return simple_table(columns, names, EmptyHint(_("Nothing changes.")))
