"""Text fields that suggest names of topics, groups or nodes while the user types.

Any other name may be typed, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from django import forms
from django.urls import reverse
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from metadata.cache import snapshot
from metadata.rules.topics.states import TopicKind

# Suggested names. A script replaces them while the user types.
MAX_OPTIONS = 200


class Picker(forms.TextInput):
    """A text field that suggests names. Without scripts, the suggestions are fixed."""

    def __init__(self, kind: str) -> None:
        super().__init__({"autocomplete": "off"})
        self.kind = kind

    def render(
        self, name: str, value: Any, attrs: Any = None, renderer: Any = None
    ) -> SafeString:
        """Return the field with its list of suggestions."""
        list_id = f"{name}_names"
        htmx = {
            "hx-get": f"{reverse('names', args=[self.kind])}?field={name}",
            "hx-trigger": "input changed delay:150ms",
            "hx-target": f"#{list_id}",
            "hx-sync": "this:replace",
        }
        # Nodes are few, so their list needs no script.
        live_attributes = htmx if self.kind != "node" else {}
        input_element = super().render(
            name, value, {**(attrs or {}), "list": list_id, **live_attributes}, renderer
        )
        return format_html(
            '{}<datalist id="{}">{}</datalist>',
            input_element,
            list_id,
            name_options(self.kind, value or ""),
        )


def name_options(kind: str, typed_text: str) -> SafeString:
    """Return the names that contain the typed words as <option> elements.

    Without a match return the first names, so that the list is never empty.
    """
    names = names_of_kind(kind)
    matches = (
        best_matches(names, typed_text.lower().split(), limit=MAX_OPTIONS)
        or sorted(names)[:MAX_OPTIONS]
    )
    return format_html_join("", '<option value="{}">', ((name,) for name in matches))


def names_of_kind(kind: str) -> list[str]:
    """Return the names of all topics, groups or nodes, from the snapshot in memory.
    Internal topics are left out.
    """
    cluster = snapshot.current()
    if kind == "topic":
        return [
            topic.name
            for topic in cluster.topics.values()
            if topic.kind == TopicKind.NORMAL and topic.state != "deleting"
        ]
    return [
        item.name
        for item in (cluster.groups if kind == "group" else cluster.nodes).values()
    ]


def best_matches(names: Iterable[str], parts: Sequence[str], *, limit: int) -> list[str]:
    """Return the first names that contain all parts. Names that begin with the first part
    come first.

    >>> best_matches(["my-bills", "bills", "billing"], ["bil"], limit=2)
    ['bills', 'billing']
    """
    if not parts:
        return []
    matches = [name for name in names if all(part in name.lower() for part in parts)]
    return sorted(
        matches, key=lambda name: (not name.lower().startswith(parts[0]), len(name), name)
    )[:limit]
