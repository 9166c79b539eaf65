"""Template tags of the frame around every page: the menu and the icons.

They are here and not in portal.templatetags, on which this package depends. catmq_site.settings
names them as the library "frame".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from django import template
from django.template import Context
from django.utils.html import format_html
from django.utils.translation import gettext_lazy as lazy

from metadata.installation import name_programs
from portal.kit.pages import SECTIONS, page_url
from portal.kit.tables import Text

register = template.Library()


class Entry(NamedTuple):
    """An entry of the menu: a section of SECTIONS, and the key that opens it after "g"."""

    section: str
    key: str = ""
    is_for_administrators: bool = False


class Item(NamedTuple):
    """An entry as it is shown. `section` is also the name of its icon."""

    section: str
    label: Text
    href: str
    key: str
    is_current: bool


# Heading and entries of each part of the menu.
MENU: Sequence[tuple[Text, Sequence[Entry]]] = (
    ("", [Entry("overview", "o")]),
    (
        lazy("Data"),
        [
            Entry("topics", "t"),
            Entry("groups", "g"),
            Entry("subscriptions"),
            Entry("consumers", "c"),
            Entry("messages", "m"),
        ],
    ),
    (
        lazy("Operation"),
        [
            Entry("alarms", "a"),
            Entry("nodes", "n", is_for_administrators=True),
            Entry("brokers", "b"),
            Entry("rebalances"),
            Entry("jobs", "j"),
            Entry("audit", "l"),
        ],
    ),
    (
        lazy("Administration"),
        [
            Entry(section, key, is_for_administrators=True)
            for section, key in (
                ("keys", ""),
                ("users", ""),
                ("pipeline", "p"),
                ("reports", ""),
                ("doctor", "d"),
                ("checks", ""),
                ("settings", ""),
            )
        ],
    ),
)
# Sections that are no part of SECTIONS: they have no list with breadcrumbs.
OTHER_SECTIONS: dict[str, tuple[Text, str]] = {
    "overview": (lazy("Overview"), "overview"),
    "data": (lazy("Data browser"), "admin:index"),
}


@register.inclusion_tag("portal/frame/navigation.html", takes_context=True)
def main_menu(context: Context) -> dict[str, Any]:
    """Return the parts of the menu that the user may open, with the current section marked."""
    is_administrator = bool(context.get("is_administrator"))
    current_section = str(context.get("section") or "")
    parts = []
    for heading, entries in MENU:
        items = [
            _menu_item(entry, current_section)
            for entry in entries
            if is_administrator or not entry.is_for_administrators
        ]
        if items:
            parts.append((heading, items))
    # Being an administrator is not enough for Django's admin site.
    if is_administrator and context["request"].user.is_superuser:
        parts[-1][1].append(_menu_item(Entry("data"), current_section))
    return {"parts": parts}


def _menu_item(entry: Entry, current_section: str) -> Item:
    label, url_name = {**SECTIONS, **OTHER_SECTIONS}[entry.section]
    return Item(
        entry.section,
        label,
        page_url(url_name),
        entry.key,
        entry.section == current_section,
    )


register.filter("name_programs", name_programs)


@register.simple_tag
def icon(name: str) -> str:
    """Return an icon of portal/frame/icons.html. It is hidden from screen readers."""
    return format_html(
        '<svg class="icon" aria-hidden="true"><use href="#icon-{}"/></svg>', name
    )
