"""What stands around pages: errors inside the frame, breadcrumbs, menus, filters, links to
previews.
"""

from __future__ import annotations

import re
from datetime import timedelta

import pytest
from django.test import Client

from metadata.cache import snapshot
from metadata.db import clock
from metadata.db.clock import database_now
from metadata.models import AuditLog
from tests.support import rows
from tests.support.forms import browser as browser_of
from tests.support.forms import fields, text

pytestmark = pytest.mark.one_engine

HTML = {"accept": "text/html"}  # a browser; programs get problem details


@pytest.fixture
def ada(metadata_db: None) -> Client:
    """An administrator's browser; group billing reads topic orders."""
    rows.world()
    snapshot.refresh()
    return browser_of("ada", administrator=True)


def crumbs(page: str) -> list[str]:
    """The labels of the breadcrumbs."""
    return re.findall(
        r"<li><a[^>]*>([^<]*)<", page.partition('class="crumbs"')[2].partition("</nav>")[0]
    )


def test_an_error_shows_no_navigation_to_who_has_not_logged_in(metadata_db: None) -> None:
    answer = Client().get("/nowhere", headers=HTML)
    assert answer.status_code == 404 and 'class="side"' not in text(answer)
    assert "Page not found" in text(answer)


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/", []),
        ("/topics", []),
        ("/topics/orders", ["Topics"]),
        ("/topics/orders/settings", ["Topics", "orders"]),
        ("/messages?topic=orders", ["Topics", "orders"]),
        ("/groups/billing/moves", ["Consumer groups", "billing"]),
        ("/groups/billing/of/orders", ["Consumer groups", "billing"]),
        ("/audit?name=billing&of=group", ["Consumer groups", "billing"]),
        ("/audit?name=nobody&of=group", []),
        ("/create/user", ["Users and roles"]),
    ],
)
def test_every_page_says_where_it_stands(
    ada: Client, path: str, expected: list[str]
) -> None:
    assert crumbs(text(ada.get(path))) == expected


def test_dangerous_actions_stand_last_and_one_is_a_button(ada: Client) -> None:
    page = (
        text(ada.get("/topics/orders"))
        .partition('class="head"')[2]
        .partition('class="tabbar"')[0]
    )
    buttons, _, more = page.partition('<details class="menu">')
    assert re.findall(r'class="button ([a-z]*)"', buttons) == ["primary"]
    assert re.findall(r'<a class="([a-z]*)"', more)[-1] == "danger"


def test_the_audit_log_is_cut_to_a_person_and_days(ada: Client) -> None:
    AuditLog.objects.all().delete()
    now = database_now()
    for who, days in (("ada", 0), ("bob", 0), ("ada", 10)):
        AuditLog.objects.create(
            at=now - timedelta(days=days), actor_kind="user", actor_name=who, verb="create",
            kind="topic",
            name=f"{who}-{days}",
        )  # fmt: skip

    def names(query: str) -> list[str]:
        return re.findall(r">(\w+-\d+)<", text(ada.get(f"/audit?{query}")))

    assert names("") == ["ada-10", "bob-0", "ada-0"]
    assert names("who=ada") == ["ada-10", "ada-0"]
    since = (now - timedelta(days=2)).date().isoformat()
    assert names(f"who=ada&since={since}") == ["ada-0"]
    assert names(f"until={since}") == ["ada-10"]
    assert names("since=yesterday") == ["ada-10", "bob-0", "ada-0"], (
        "what is no day is ignored"
    )


def test_a_link_leads_to_a_preview_and_changes_nothing(ada: Client) -> None:
    AuditLog.objects.all().delete()
    preview = ada.get("/topics/orders/settings?preview=yes")
    assert fields(preview).get("confirmed") == "yes" and AuditLog.objects.count() == 0
    incomplete = ada.get("/create/topic?preview=yes")
    assert "confirmed" not in fields(incomplete), "the name is missing: the form is shown"


def test_a_time_of_a_page_is_exact_without_script(ada: Client) -> None:
    page = text(ada.get("/groups/billing"))
    assert re.search(
        r'<time datetime="20[^"]+\+00:00" class="nowrap">20[0-9-]+ [0-9:]+ UTC</time>', page
    )
    assert re.search(r'data-now="\d{13}"', page)


def test_a_page_asks_for_the_time_once(
    ada: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is changed by a form is stamped with times of its own."""
    asked: list[clock.DatabaseState] = []
    ask = clock.database_state

    def counted() -> clock.DatabaseState:
        asked.append(ask())
        return asked[-1]

    monkeypatch.setattr(clock, "database_state", counted)
    assert ada.get("/").status_code == 200 and len(asked) == 1
    assert ada.post("/groups/billing/stop", {}).status_code == 200 and len(asked) > 2
    asked.clear()
    with clock.one_moment():
        assert clock.database_now() is clock.database_now()
    assert clock.database_now() is not clock.database_now() and len(asked) == 3
