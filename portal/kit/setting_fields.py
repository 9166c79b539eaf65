"""Form fields and page rows of declared settings (metadata.rules.settings)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeVar

from django import forms
from django.utils.text import format_lazy
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy as lazy

from metadata.cache import snapshot
from metadata.rules.groups.filters import header_lines, read_headers
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
FACT_KINDS = {
    "ms": "lasting",
    "bytes": "size",
}  # kinds of facts by unit; others are numbers
QUEUE_NAMES = lazy("Names such as orders/3, separated by commas. Empty: none.")
MAX_QUEUE_NAMES = 50_000  # characters of names of queues
HEADER_LINES = lazy("Write each header on a line, as name=value or name=value,value.")


class NumbersField(forms.CharField):
    """Whole numbers, separated by commas or blanks. Raises ValidationError."""

    def clean(self, value: Any) -> list[int]:
        found = str(super().clean(value)).replace(",", " ").split()
        if not all(word.isascii() and word.isdigit() and len(word) < 19 for word in found):
            raise forms.ValidationError(_("Give whole numbers, separated by commas."))
        return [int(word) for word in found]


class QueuesField(forms.CharField):
    """Queues by the names that pages show, such as orders/3; their ids. Raises
    ValidationError.

    With `takes_ids` an id will do: a page shows that of a queue that is gone.
    """

    def __init__(self, *, takes_ids: bool = False, **form: Any) -> None:
        super().__init__(**form)
        self._takes_ids = takes_ids

    def clean(self, value: Any) -> list[int]:
        names = str(super().clean(value)).replace(",", " ").split()
        known = snapshot.current()
        found = {name: known.queue_called(name) for name in names}
        ids = {
            name: one.id if one is not None else self._id(name)
            for name, one in found.items()
        }
        if gone := [name for name, one in ids.items() if not one]:
            words = _(
                "There is no queue %s. Name queues as on the pages, such as orders/3."
            )
            raise forms.ValidationError(words % ", ".join(gone))
        return sorted(set(ids.values()))

    def prepare_value(self, value: Any) -> Any:
        """Name the queues of a setting; what was typed stays as it is."""
        known = snapshot.current()
        return (
            [known.queue_name(one) or one for one in value]
            if isinstance(value, list)
            else value
        )

    def _id(self, word: str) -> int:
        """The id that a word is, 0 for another word."""
        return (
            int(word)
            if self._takes_ids and word.isascii() and word.isdigit() and len(word) < 19
            else 0
        )


class HeadersField(forms.CharField):
    """A header filter, each header on a line. Raises ValidationError."""

    widget = forms.Textarea(attrs={"rows": 3})

    def clean(self, value: Any) -> dict[str, list[str]]:
        try:
            return read_headers(super().clean(value))
        except ValueError as error:
            raise forms.ValidationError(HEADER_LINES) from error

    def prepare_value(self, value: Any) -> Any:
        return header_lines(value) if isinstance(value, dict) else value


def setting_label(one: Setting) -> Words:
    """Return the label of a setting, with its unit."""
    unit = getattr(one.kind, "unit", "")
    return format_lazy("{}, {}", lazy(one.label), lazy(unit)) if unit else lazy(one.label)


def _help(one: Setting) -> Words:
    said: list[Words] = [lazy(one.help)] if one.help else []
    if one.kind.null:
        said.append(format_lazy(lazy("Empty: {null}."), null=lazy(one.kind.null)))
    return format_lazy(" ".join(["{}"] * len(said)), *said)


def form_field(one: Setting) -> forms.Field:
    kind, words = (
        one.kind,
        {"label": setting_label(one), "help_text": _help(one), "initial": one.default},
    )
    match kind:
        case Whole():
            return forms.IntegerField(
                min_value=kind.least,
                max_value=kind.most,
                required=not kind.null,
                **words,
            )
        case Choice():
            choices = [(word, lazy(meaning)) for word, meaning in kind.words.items()]
            return forms.ChoiceField(choices=choices, **words)
        case Flag():
            return forms.BooleanField(required=False, **words)
        case Numbers():
            if not kind.ids:
                return NumbersField(max_length=1000, **words)
            words["help_text"] = format_lazy("{} {}", words["help_text"], QUEUE_NAMES)
            return QueuesField(
                takes_ids=True, required=False, max_length=MAX_QUEUE_NAMES, **words
            )
        case Headers():
            told = format_lazy("{} {}", words["help_text"], HEADER_LINES)
            return HeadersField(
                required=False,
                max_length=2 * kind.most,
                **{**words, "initial": "", "help_text": told},
            )
        case Text():
            widget = forms.Textarea(attrs={"rows": 3}) if kind.lines else None
            return forms.CharField(
                required=False, max_length=kind.most, widget=widget, **words
            )
    raise TypeError(kind)


def with_settings(
    settings: Mapping[str, Setting], *, without: Collection[str] = ()
) -> Callable[[type[F]], type[F]]:
    """Give a form the fields of settings, behind its own."""
    fields = {
        name: form_field(one) for name, one in settings.items() if name not in without
    }

    def extend(form: type[F]) -> type[F]:
        form.declared_fields = form.base_fields = {**form.base_fields, **fields}
        return form

    return extend


def setting_facts(
    settings: Mapping[str, Setting], view: object, *, without: Collection[str] = ()
) -> list[Fact]:
    """Return rows of a page that show the settings of a topic or group."""
    return [
        _fact(one, getattr(view, name))
        for name, one in settings.items()
        if name not in without
    ]


def _fact(one: Setting, value: Any) -> Fact:
    kind = one.kind
    if value in (None, ""):
        return Fact(setting_label(one), _(kind.null) if kind.null else None)
    if isinstance(kind, Choice):
        return Fact(lazy(one.label), _(kind.words[value]))
    if isinstance(kind, Flag):
        return Fact(lazy(one.label), _("yes") if value else _("no"))
    if isinstance(kind, Whole):
        shown = FACT_KINDS.get(kind.unit)
        return Fact(
            lazy(one.label) if shown else setting_label(one), value, kind=shown or "number"
        )
    return Fact(lazy(one.label), value)
