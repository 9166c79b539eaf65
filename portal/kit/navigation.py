"""Navigation of the pages of a topic or group: the section, breadcrumbs and tabs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from urllib.parse import urlencode

from django.http import HttpRequest
from django.utils.translation import gettext as _

from metadata.cache import snapshot
from metadata.monitoring import dead_letter_counts
from metadata.rules.rights import Right
from portal.auth.access import may
from portal.kit.pages import Link, page_url, section_crumbs

# URL parameter of a list that was opened from a topic or group: the kind of that object.
KIND_PARAMETER = "of"


def for_topic(name: str, selected_tab: str) -> dict[str, Any]:
    """Return the navigation context of a page of a topic, for `pages.render_page`."""
    tabs = {
        "topic": (_("Overview"), page_url("topic", name)),
        "messages": (_("Messages"), f"{page_url('messages')}?{urlencode({'topic': name})}"),
        "delayed": (_("Delayed"), page_url("delayed", name)),
        "audit": (_("Changes"), _list_url("audit", "topic", name=name)),
    }
    return _build_context("topics", name, tabs, selected_tab)


def for_group(request: HttpRequest, name: str, selected_tab: str) -> dict[str, Any]:
    """Return the navigation context of a page of a group. Its tab of dead letters has
    their number.
    """
    tabs = {"group": (_("Overview"), page_url("group", name))}
    if may(request, Right.MANAGE, name, what="group"):
        tabs["failures"] = _("Retries and dead letters"), page_url("failures", name)
    tabs["moves"] = _("Offset resets"), page_url("moves", name)
    tabs["rebalances"] = _("Rebalances"), _list_url("rebalances", "group", q=name)
    tabs["audit"] = _("Changes"), _list_url("audit", "group", name=name)
    context = _build_context("groups", name, tabs, selected_tab)
    group = snapshot.current().group(name)
    # A job keeps the count, so the tab needs only a small query.
    dead_letters = (
        dead_letter_counts.read_group_count(group.id)
        if "failures" in tabs and group
        else None
    )
    if dead_letters is not None:
        tone = "bad" if dead_letters.unseen else "warn"
        index = list(tabs).index("failures")
        context["tabs"][index] = replace(
            context["tabs"][index], count=dead_letters.messages, count_tone=tone
        )
    return context


def for_list(request: HttpRequest, selected_tab: str, *, name: str) -> dict[str, Any]:
    """Return the navigation context of a list that was opened from a topic or group,
    else nothing.
    """
    # A name in the URL may belong to a deleted object, which has no tabs.
    cluster = snapshot.current()
    kind = request.GET.get(KIND_PARAMETER)
    if kind == "group" and cluster.group(name):
        return for_group(request, name, selected_tab)
    if kind == "topic" and cluster.topic(name):
        return for_topic(name, selected_tab)
    return {}


def _list_url(page: str, kind: str, **parameters: str) -> str:
    return f"{page_url(page)}?{urlencode({**parameters, KIND_PARAMETER: kind})}"


def _build_context(
    section: str, name: str, tabs: dict[str, tuple[str, str]], selected_tab: str
) -> dict[str, Any]:
    links = [
        Link(label, href, "on" if key == selected_tab else "")
        for key, (label, href) in tabs.items()
    ]
    crumbs = [Link(name, tabs[section.removesuffix("s")][1])]
    is_overview = selected_tab == section.removesuffix("s")
    return {
        "section": section,
        "crumbs": [*section_crumbs(section), *([] if is_overview else crumbs)],
        "tabs": links,
    }
