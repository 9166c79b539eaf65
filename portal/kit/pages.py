"""Building blocks of portal pages: links, facts, saved filters, and the functions that
render a page.

A view collects data and calls render_page() or render_list(). Templates get what stands
here as context.
"""

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

# Sections of the navigation: label, and the URL name of the section's first page.
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
    "doctor": (lazy("Doctor"), "doctor"),
    "checks": (lazy("Checks"), "consistency"),
    "settings": (lazy("Settings"), "settings"),
}
# URL names of lists whose filters can be saved.
LISTS_WITH_FILTERS = frozenset(name for _label, name in SECTIONS.values())
# URL parameters that choose a part of a list. A changed filter drops them: another filter has
# other pages.
PAGING_PARAMETERS = ("page", "after", "seen")
# URL parameters that do not belong to a saved filter.
UNSAVED_PARAMETERS = (*PAGING_PARAMETERS, "tail", "columns", "format")
# A page with more actions than this shows a button and a menu.
MAX_BUTTONS = 2


@dataclass(frozen=True, slots=True)
class Link:
    """A link or a button.

    `tone` is '', 'primary', 'danger', or 'on' for the selected link of several. A tab
    shows `count` in a badge with the tone `count_tone`. A list of links shows `note` after
    the link.
    """

    label: Text
    href: str
    tone: str = ""
    count: int | None = None
    count_tone: str = "warn"
    note: Text = ""


@dataclass(frozen=True, slots=True)
class Menu:
    """Actions of a page: `buttons` are always visible, `in_menu` opens on a click."""

    buttons: Sequence[Link]
    in_menu: Sequence[Link] = ()


@dataclass(frozen=True, slots=True)
class Fact:
    """A label and a value on the page of an object.

    `href` leads to details. `note` is a short text below the value of a tile, `trend` the
    values of its small chart. A fact of kind "long" gets the full width.
    """

    label: Text
    value: Any
    href: str = ""
    tone: str = ""
    kind: str = "text"
    note: Text = ""
    trend: Sequence[float] = ()


@dataclass(frozen=True, slots=True)
class SavedFilters:
    """Saved filters of a list.

    `query` is the query string of the request, `current_filter` its filter part ('' if
    the list is not filtered).
    """

    page: str
    filters: Sequence[FilterView]
    query: str
    current_filter: str


@dataclass(frozen=True, slots=True)
class Step:
    """A step in the life line of a message.

    `tone` is ok, warn, bad or ''. `at_ms` is None if no time is recorded.
    """

    title: Text
    text: Text = ""
    at_ms: int | None = None
    tone: str = ""
    href: str = ""


def render_page(
    request: HttpRequest, template: str, title: Text, *, status: int = 200, **context: Any
) -> HttpResponse:
    """Render a page from `portal/<template>.html`.

    In `context`, `section` marks the place in the navigation, `crumbs` and `tabs` the
    place below it, `actions` become buttons. Without `crumbs`, the page gets those of
    its section.
    """
    context["menu"] = arrange_actions(context.pop("actions", ()))
    if "crumbs" not in context:
        # The first page of a section would otherwise link to itself.
        crumbs = section_crumbs(context.get("section", ""))
        context["crumbs"] = [crumb for crumb in crumbs if crumb.href != request.path]
    # Scripts compute ages from the database's clock, because the browser's may be wrong.
    context["now_ms"] = ms(database_now())
    return render(
        request, f"portal/{template}.html", {"title": title, **context}, status=status
    )


def arrange_actions(actions: Sequence[Link]) -> Menu:
    """Return the first action as a button and the others as a menu, dangerous actions
    last.
    """
    # Dangerous actions come last, so that they are not clicked by mistake.
    ordered = sorted(
        actions, key=lambda action: (action.tone == "danger", action.tone != "primary")
    )
    if len(ordered) <= MAX_BUTTONS:
        return Menu(ordered)
    return Menu(ordered[:1], ordered[1:])


def section_crumbs(section: str) -> list[Link]:
    """Return a link to the first page of a section, nothing for pages outside all
    sections.
    """
    if section not in SECTIONS:
        return []
    label, name = SECTIONS[section]
    return [Link(label, page_url(name))]


def filter_chips(request: HttpRequest, labels: Mapping[str, Text]) -> list[Link]:
    """Return a link for each filter in the URL that removes the filter.

    `labels` are the labels of the filters, by URL parameter.
    """
    filters = {name: request.GET.get(name, "") for name in labels}
    return [
        Link(
            f"{labels[name]}: {value}",
            url_with(request, **dict.fromkeys((name, *PAGING_PARAMETERS), "")),
        )
        for name, value in filters.items()
        if value
    ]


def filter_query(parameters: Mapping[str, str]) -> str:
    """Return the query string of the parameters that make up a filter.

    >>> filter_query({"q": "a b", "page": "2", "sort": ""})
    'q=a+b'
    """
    return urlencode(
        {
            name: value
            for name, value in parameters.items()
            if value and name not in UNSAVED_PARAMETERS
        }
    )


def find_saved_filters(request: HttpRequest) -> SavedFilters | None:
    """Return the saved filters of the requested list, None if the page has none."""
    match = request.resolver_match
    page = match.url_name if match else None
    if page not in LISTS_WITH_FILTERS:
        return None
    filters = saved_filters.list_filters(page=page, actor=actor(request))
    return SavedFilters(
        page, filters, request.GET.urlencode(), filter_query(request.GET.dict())
    )


def render_list(
    request: HttpRequest,
    title: Text,
    table: Table,
    *,
    searched: bool = True,
    **context: Any,
) -> HttpResponse:
    """Render a page with a list.

    In `context`, `intro`, `actions` and `filters` stand above the list. `search_fields` are
    further fields of the search form, as dicts of name, label, type and value.
    `folded_rows` are pairs of summary and items that unfold below the list, with items as of
    `tables.code_with_fold`.
    """
    query = request.GET.get("q", "")
    field_names = {field["name"] for field in context.get("search_fields", ())}
    context["kept_parameters"] = [
        parameter for parameter in table.other_parameters if parameter[0] not in field_names
    ]
    context["saved"] = find_saved_filters(request) if searched else None
    return render_page(
        request,
        "kit/list",
        title,
        table=table,
        live=True,
        searched=searched,
        query=query,
        **context,
    )


def page_url(name: str, *arguments: object) -> str:
    """Return the URL of a page by its name and the arguments of its route."""
    return reverse(name, args=arguments)
