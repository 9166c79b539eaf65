"""Places of pages about one topic or group: breadcrumbs, and the tabs of what belongs to
it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from urllib.parse import urlencode

from django.http import HttpRequest
from django.utils.translation import gettext as _

from metadata.cache import snapshot
from metadata.monitoring import dead_letter_counts
from portal.auth.access import may
from portal.kit.pages import Link, page_url, section_crumbs

KIND_PARAMETER = "of"  # in the URL of a list: the kind of thing whose tabs stand above it


def for_topic(name: str, on: str) -> dict[str, Any]:
    """Return the words of a page of a topic for `pages.show`; `on` is its tab."""
    tabs = {
        "topic": (_("Overview"), page_url("topic", name)),
        "messages": (_("Messages"), f"{page_url('messages')}?{urlencode({'topic': name})}"),
        "delayed": (_("Delayed"), page_url("delayed", name)),
        "audit": (_("Changes"), _listed("audit", "topic", name=name)),
    }
    return _words("topics", name, tabs, on)


def for_group(request: HttpRequest, name: str, on: str) -> dict[str, Any]:
    """Return the same of a page of a group; the tab of dead letters has their number."""
    tabs = {"group": (_("Overview"), page_url("group", name))}
    if may(request, "manage", name, what="group"):
        tabs["failures"] = _("Retries and dead letters"), page_url("failures", name)
    tabs["moves"] = _("Offset resets"), page_url("moves", name)
    tabs["rebalances"] = _("Rebalances"), _listed("rebalances", "group", q=name)
    tabs["audit"] = _("Changes"), _listed("audit", "group", name=name)
    words = _words("groups", name, tabs, on)
    group = snapshot.current().group(name)
    dead = dead_letter_counts.of_group(group.id) if "failures" in tabs and group else None
    if dead is not None:
        tone = "bad" if dead.unseen else "warn"
        place = list(tabs).index("failures")
        words["tabs"][place] = replace(
            words["tabs"][place], count=dead.messages, count_tone=tone
        )
    return words


def for_list(request: HttpRequest, on: str, *, name: str) -> dict[str, Any]:
    """Return the same of a list that was opened from a topic or group; nothing of any
    other.
    """
    known = snapshot.current()
    kind = request.GET.get(KIND_PARAMETER)
    if kind == "group" and known.group(name):
        return for_group(request, name, on)
    if kind == "topic" and known.topic(name):
        return for_topic(name, on)
    return {}


def _listed(page: str, kind: str, **words: str) -> str:
    return f"{page_url(page)}?{urlencode({**words, KIND_PARAMETER: kind})}"


def _words(
    section: str, name: str, tabs: dict[str, tuple[str, str]], on: str
) -> dict[str, Any]:
    found = [
        Link(label, href, "on" if key == on else "") for key, (label, href) in tabs.items()
    ]
    own = [Link(name, tabs[section.removesuffix("s")][1])]
    is_first = on == section.removesuffix("s")
    return {
        "section": section,
        "crumbs": [*section_crumbs(section), *([] if is_first else own)],
        "tabs": found,
    }
