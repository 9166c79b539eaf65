"""Pickers: text fields that offer the names there are while one types. Any other name may
be typed, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from django import forms
from django.urls import reverse
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from metadata.cache import snapshot

MAX_OPTIONS = 200  # names in a list; with script it follows what is typed


class Picker(forms.TextInput):
    """A field for the name of a topic, group or node. The list is there without script."""

    def __init__(self, kind: str) -> None:
        super().__init__({"autocomplete": "off"})
        self.kind = kind

    def render(
        self, name: str, value: Any, attrs: Any = None, renderer: Any = None
    ) -> SafeString:
        """Return the field and its list."""
        place = f"{name}_names"
        asked = {
            "hx-get": f"{reverse('names', args=[self.kind])}?field={name}",
            "hx-trigger": "input changed delay:150ms",
            "hx-target": f"#{place}",
            "hx-sync": "this:replace",
        }
        follows = asked if self.kind != "node" else {}  # there are few nodes
        field = super().render(
            name, value, {**(attrs or {}), "list": place, **follows}, renderer
        )
        return format_html(
            '{}<datalist id="{}">{}</datalist>',
            field,
            place,
            name_options(self.kind, value or ""),
        )


def name_options(kind: str, part: str) -> SafeString:
    """Return the names that hold a part as options; all if none does, so that the list is
    never empty.
    """
    known = names_of_kind(kind)
    found = (
        best_matches(known, part.lower().split(), most=MAX_OPTIONS)
        or sorted(known)[:MAX_OPTIONS]
    )
    return format_html_join("", '<option value="{}">', ((name,) for name in found))


def names_of_kind(kind: str) -> list[str]:
    """Return the names of a kind, from the snapshot in memory: topics that people made,
    groups, or nodes.
    """
    known = snapshot.current()
    if kind == "topic":
        return [
            one.name
            for one in known.topics.values()
            if one.kind == "normal" and one.state != "deleting"
        ]
    return [one.name for one in (known.groups if kind == "group" else known.nodes).values()]


def best_matches(known: Iterable[str], parts: Sequence[str], *, most: int) -> list[str]:
    """Return the first names that hold all parts, those that begin with the first one
    before the others.

    >>> best(["my-bills", "bills", "billing"], ["bil"], most=2)
    ['bills', 'billing']
    """
    if not parts:
        return []
    fitting = [name for name in known if all(part in name.lower() for part in parts)]
    return sorted(
        fitting, key=lambda name: (not name.lower().startswith(parts[0]), len(name), name)
    )[:most]
