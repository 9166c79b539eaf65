"""Pages: a template, a title, where it stands in the navigation, and what is on it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.utils.translation import gettext_lazy as lazy

from metadata.db.clock import database_now, ms
from metadata.users import saved_filters
from metadata.users.saved_filters import FilterView
from portal.auth.access import actor
from portal.kit.tables import Table, Text, url_with

# of the navigation: label, name of the page that begins it
SECTIONS: Mapping[str, tuple[Text, str]] = {
    "topics": (lazy("Topics"), "topics"),
    "groups": (lazy("Consumer groups"), "groups"),
    "subscriptions": (lazy("Subscriptions"), "subscriptions"),
    "consumers": (lazy("Consumers"), "consumers"),
    "messages": (lazy("Messages"), "messages"),
    "alarms": (lazy("Alarms"), "alarms"),
    "nodes": (lazy("Nodes"), "nodes"),
    "brokers": (lazy("Brokers"), "brokers"),
    "rebalances": (lazy("Rebalances"), "rebalances"),
    "jobs": (lazy("Jobs"), "jobs"),
    "audit": (lazy("Audit log"), "audit"),
    "keys": (lazy("API keys"), "keys"),
    "users": (lazy("Users and roles"), "users"),
    "pipeline": (lazy("Data pipeline"), "pipeline"),
    "reports": (lazy("Reports"), "reports"),
    "checks": (lazy("Checks"), "consistency"),
    "settings": (lazy("Settings"), "settings"),
}
# pages whose filters can be saved
LISTS_WITH_FILTERS = frozenset(name for _label, name in SECTIONS.values())
# words of the URL that say which part of a list is shown
PAGING_PARAMETERS = ("page", "after", "seen")
# words of the URL that are no part of a filter
UNSAVED_PARAMETERS = (*PAGING_PARAMETERS, "tail", "columns", "format")
MAX_BUTTONS = 2  # actions that need no menu


@dataclass(frozen=True, slots=True)
class Link:
    """A link or a button; `tone` is '', 'primary', 'danger', or 'on' for the chosen one of
    several.

    `count` is shown in a badge beside the label of a tab, in the tone `count_tone`.
    """

    label: Text
    href: str
    tone: str = ""
    count: int | None = None
    count_tone: str = "warn"


@dataclass(frozen=True, slots=True)
class Menu:
    """Actions of a page: those that are buttons, and those in the menu beside them."""

    shown: Sequence[Link]
    more: Sequence[Link] = ()


@dataclass(frozen=True, slots=True)
class Fact:
    """A label and a value on a page about one thing; `href` leads to what is behind it.

    `note`: a few words below the value of a tile. One of kind "long" has the whole width.
    """

    label: Text
    value: Any
    href: str = ""
    tone: str = ""
    kind: str = "text"
    note: Text = ""


@dataclass(frozen=True, slots=True)
class SavedFilters:
    """Filters that the person saved of a page, and the one that its URL holds now, '' for
    none.
    """

    page: str
    filters: Sequence[FilterView]
    query: str
    now: str


@dataclass(frozen=True, slots=True)
class Step:
    """A step of a life line; `tone` is ok, warn, bad or ''; `at_ms` is None where no time
    is recorded.
    """

    title: Text
    text: Text = ""
    at_ms: int | None = None
    tone: str = ""
    href: str = ""


def render_page(
    request: HttpRequest, template: str, title: Text, *, status: int = 200, **words: Any
) -> HttpResponse:
    """A page. `section` in `words` marks the place in the navigation, `crumbs` and `tabs`
    that below it.
    """
    words["menu"] = arrange_actions(words.pop("actions", ()))
    if "crumbs" not in words:
        way = section_crumbs(words.get("section", ""))
        words["crumbs"] = [one for one in way if one.href != request.path]
    words["now_ms"] = ms(database_now())
    return render(
        request, f"portal/{template}.html", {"title": title, **words}, status=status
    )


def arrange_actions(actions: Sequence[Link]) -> Menu:
    """Return the first action as a button and the others as a menu, the dangerous ones
    last.
    """
    ordered = sorted(actions, key=lambda row: (row.tone == "danger", row.tone != "primary"))
    if len(ordered) <= MAX_BUTTONS:
        return Menu(ordered)
    return Menu(ordered[:1], ordered[1:])


def section_crumbs(section: str) -> list[Link]:
    """Return the way to the first page of a section; nowhere for what stands in none."""
    if section not in SECTIONS:
        return []
    label, name = SECTIONS[section]
    return [Link(label, page_url(name))]


def filter_chips(request: HttpRequest, labels: Mapping[str, Text]) -> list[Link]:
    """Return the filters that the URL has, by name, each with the address without it."""
    asked = {name: request.GET.get(name, "") for name in labels}
    return [
        Link(
            f"{labels[name]}: {value}",
            url_with(request, **dict.fromkeys((name, *PAGING_PARAMETERS), "")),
        )
        for name, value in asked.items()
        if value
    ]


def filter_query(words: Mapping[str, str]) -> str:
    """Return the words of a URL that make a filter, as they stand in a URL.

    >>> filter_of({"q": "a b", "page": "2", "sort": ""})
    'q=a+b'
    """
    return urlencode(
        {
            name: value
            for name, value in words.items()
            if value and name not in UNSAVED_PARAMETERS
        }
    )


def find_saved_filters(request: HttpRequest) -> SavedFilters | None:
    """Return the saved filters of the list that a request is for; None where none can be
    saved.
    """
    match = request.resolver_match
    page = match.url_name if match else None
    if page not in LISTS_WITH_FILTERS:
        return None
    found = saved_filters.listed(page=page, actor=actor(request))
    return SavedFilters(
        page, found, request.GET.urlencode(), filter_query(request.GET.dict())
    )


def render_list(
    request: HttpRequest, title: Text, table: Table, *, searched: bool = True, **words: Any
) -> HttpResponse:
    """A page with one list; `intro`, `actions` and `filters` in `words` stand above it, and
    `asked`:
    fields of the search, as name, label, type and value."""
    query = request.GET.get("q", "")
    own = {one["name"] for one in words.get("asked", ())}
    words["keep"] = [one for one in table.keep if one[0] not in own]
    words["saved"] = find_saved_filters(request) if searched else None
    return render_page(
        request,
        "kit/list",
        title,
        table=table,
        live=True,
        searched=searched,
        query=query,
        **words,
    )


def page_url(name: str, *words: object) -> str:
    return reverse(name, args=words)
