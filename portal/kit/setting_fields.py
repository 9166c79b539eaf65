"""Form fields and page rows for declared settings (metadata.rules.settings)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeVar

from django import forms
from django.utils.text import format_lazy
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy as lazy

from metadata.cache import snapshot
from metadata.rules.groups.filters import format_headers, parse_headers
from metadata.rules.setting_types import (
    Choice,
    Flag,
    Headers,
    Numbers,
    Setting,
    Text,
    Whole,
)
from portal.kit.pages import Fact
from portal.kit.tables import Text as Words

F = TypeVar("F", bound=forms.Form)
# Kind of fact by unit. Other units are shown as numbers.
FACT_KINDS = {"ms": "lasting", "bytes": "size"}
QUEUE_NAMES = lazy("Names such as orders/3, separated by commas. Empty: none.")
# Characters of a list of queue names.
MAX_QUEUE_NAMES = 50_000
HEADER_LINES = lazy("Write each header on a line, as name=value or name=value,value.")


class NumbersField(forms.CharField):
    """Whole numbers, separated by commas or blanks. Raises ValidationError."""

    def clean(self, value: Any) -> list[int]:
        numbers = str(super().clean(value)).replace(",", " ").split()
        if not all(
            word.isascii() and word.isdigit() and len(word) < 19 for word in numbers
        ):
            raise forms.ValidationError(_("Give whole numbers, separated by commas."))
        return [int(word) for word in numbers]


class QueuesField(forms.CharField):
    """Queues by the names that pages show, such as orders/3. Cleans to their ids.

    With `takes_ids` an id is accepted, too: pages show the id of a queue that no longer
    exists. Raises ValidationError.
    """

    def __init__(self, *, takes_ids: bool = False, **form: Any) -> None:
        super().__init__(**form)
        self._takes_ids = takes_ids

    def clean(self, value: Any) -> list[int]:
        names = str(super().clean(value)).replace(",", " ").split()
        cluster = snapshot.current()
        queues = {name: cluster.find_queue_by_name(name) for name in names}
        ids = {
            name: queue.id
            if queue is not None
            else (
                int(name)
                if self._takes_ids and name.isascii() and name.isdigit() and len(name) < 19
                else 0
            )
            for name, queue in queues.items()
        }
        if unknown := [name for name, queue in ids.items() if not queue]:
            text = _("There is no queue %s. Name queues as on the pages, such as orders/3.")
            raise forms.ValidationError(text % ", ".join(unknown))
        return sorted(set(ids.values()))

    def prepare_value(self, value: Any) -> Any:
        """Return the names of a setting's queues. Typed text is returned as it is."""
        cluster = snapshot.current()
        return (
            [cluster.queue_name(queue_id) or queue_id for queue_id in value]
            if isinstance(value, list)
            else value
        )


class HeadersField(forms.CharField):
    """A header filter, a header per line. Raises ValidationError."""

    widget = forms.Textarea(attrs={"rows": 3})

    def clean(self, value: Any) -> dict[str, list[str]]:
        try:
            return parse_headers(super().clean(value))
        except ValueError as error:
            raise forms.ValidationError(HEADER_LINES) from error

    def prepare_value(self, value: Any) -> Any:
        return format_headers(value) if isinstance(value, dict) else value


def setting_label(setting: Setting) -> Words:
    """Return the label of a setting with its unit."""
    unit = getattr(setting.kind, "unit", "")
    return (
        format_lazy("{}, {}", lazy(setting.label), lazy(unit))
        if unit
        else lazy(setting.label)
    )


def form_field(setting: Setting) -> forms.Field:
    """Return the form field for a setting. Raises TypeError for an unknown type of setting."""
    sentences: list[Words] = [lazy(setting.help)] if setting.help else []
    if setting.kind.null:
        sentences.append(format_lazy(lazy("Empty: {null}."), null=lazy(setting.kind.null)))
    kind, options = (
        setting.kind,
        {
            "label": setting_label(setting),
            "help_text": format_lazy(" ".join(["{}"] * len(sentences)), *sentences),
            "initial": setting.default,
        },
    )
    match kind:
        case Whole():
            return forms.IntegerField(
                min_value=kind.minimum,
                max_value=kind.maximum,
                required=not kind.null,
                **options,
            )
        case Choice():
            choices = [(word, lazy(meaning)) for word, meaning in kind.meanings.items()]
            return forms.ChoiceField(choices=choices, **options)
        case Flag():
            return forms.BooleanField(required=False, **options)
        case Numbers():
            if not kind.ids:
                return NumbersField(max_length=1000, **options)
            options["help_text"] = format_lazy("{} {}", options["help_text"], QUEUE_NAMES)
            return QueuesField(
                takes_ids=True, required=False, max_length=MAX_QUEUE_NAMES, **options
            )
        case Headers():
            help_text = format_lazy("{} {}", options["help_text"], HEADER_LINES)
            return HeadersField(
                required=False,
                max_length=2 * kind.maximum,
                **{**options, "initial": "", "help_text": help_text},
            )
        case Text():
            widget = forms.Textarea(attrs={"rows": 3}) if kind.lines else None
            return forms.CharField(
                required=False, max_length=kind.maximum, widget=widget, **options
            )
    raise TypeError(kind)


def with_settings(
    settings: Mapping[str, Setting], *, without: Collection[str] = ()
) -> Callable[[type[F]], type[F]]:
    """Return a class decorator that adds fields for settings to a form, after its own
    fields.
    """
    fields = {
        name: form_field(setting)
        for name, setting in settings.items()
        if name not in without
    }

    # Django collects fields when a class is created, so later ones must be added to both
    # attributes.
    def extend(form: type[F]) -> type[F]:
        form.declared_fields = form.base_fields = {**form.base_fields, **fields}
        return form

    return extend


def setting_facts(
    settings: Mapping[str, Setting], view: object, *, without: Collection[str] = ()
) -> list[Fact]:
    """Return page rows with the settings of a topic or group.

    `view` has an attribute for each setting.
    """
    return [
        _setting_fact(setting, getattr(view, name))
        for name, setting in settings.items()
        if name not in without
    ]


def _setting_fact(setting: Setting, value: Any) -> Fact:
    kind = setting.kind
    if value in (None, ""):
        return Fact(setting_label(setting), _(kind.null) if kind.null else None)
    if isinstance(kind, Choice):
        return Fact(lazy(setting.label), _(kind.meanings[value]))
    if isinstance(kind, Flag):
        return Fact(lazy(setting.label), _("yes") if value else _("no"))
    if isinstance(kind, Whole):
        fact_kind = FACT_KINDS.get(kind.unit)
        return Fact(
            lazy(setting.label) if fact_kind else setting_label(setting),
            value,
            kind=fact_kind or "number",
        )
    return Fact(lazy(setting.label), value)
