"""The portal and the API behind a proxy that shows them under a path: every link stays
below it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from html import unescape
from typing import Any

import pytest
from django.conf import settings
from django.core.signals import request_finished
from django.db import close_old_connections
from django.test import Client, RequestFactory, override_settings
from django.urls import URLResolver, get_resolver, get_script_prefix, set_script_prefix

from catmq_site import wsgi
from metadata import actors
from metadata.rules.path_prefix import OWN_SEGMENTS, without_prefix
from metadata.users import api_keys
from tests.integration.site.test_portal_roles import MISSING, PAGES, kept, url_of
from tests.support import failing, moving
from tests.support.forms import browser, carry_out, text

pytestmark = pytest.mark.one_engine

PREFIX = "/catmq"
ADDRESS = re.compile(r'\b(?:href|src|action|formaction|hx-get|hx-post)="(/[^"]*)"')
NEXT = re.compile(r'name="next" value="(/[^"]*)"')
HTML = {"accept": "text/html"}


@pytest.fixture
def prefixed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The settings that CATMQ_PATH_PREFIX=/catmq makes."""
    monkeypatch.setattr(wsgi, "_PATH_PREFIX", PREFIX)
    before = get_script_prefix()
    middleware = ["portal.auth.middleware.CookiePaths", *settings.MIDDLEWARE]
    with override_settings(
        FORCE_SCRIPT_NAME=PREFIX, STATIC_URL=f"{PREFIX}/static/", MIDDLEWARE=middleware
    ):
        set_script_prefix(f"{PREFIX}/")  # as the handler of real requests does
        yield
    set_script_prefix(before)


@pytest.fixture
def world(make_node: Callable[..., str], prefixed: None) -> dict[str, object]:
    """One of everything; the words of URLs."""
    make_node("main")
    make_node("failure", kind="failure")
    queue = failing.billing(retries=0)
    failing.send(b"a", b"b")
    failing.fail(failing.member(), queue, 0)
    moving.delay("orders", b"later")
    words = {
        "topic": "orders",
        "group": "billing",
        "reset": "none",
        "message_id": f"{queue}-1",
    }
    return {**words, "kind": "lag", "key": "none", "queue": queue, **kept()}


def leaks(page: str) -> list[str]:
    """Return the addresses in a page that are outside the prefix."""
    addresses = [
        unescape(address) for address in ADDRESS.findall(page) + NEXT.findall(page)
    ]
    assert addresses
    return [one for one in addresses if one != PREFIX and not one.startswith(f"{PREFIX}/")]


def test_every_address_in_every_page_is_below_the_prefix(world: dict[str, object]) -> None:
    ada = browser("ada", administrator=True)
    pages = [one for one in PAGES if one.name not in MISSING]
    for page in pages:
        answer = ada.get(without_prefix(url_of(page, world), PREFIX), headers=HTML)
        if answer.get("Content-Type", "").startswith("text/html"):
            assert leaks(text(answer)) == [], page.name
    for path in (
        "/nowhere",
        "/admin/",
        "/admin/metadata/topic/",
        "/groups/billing/failures",
    ):
        assert leaks(text(ada.get(path, headers=HTML))) == [], path


def test_pages_of_who_has_not_logged_in_stay_below_the_prefix(
    world: dict[str, object],
) -> None:
    stranger = Client()
    assert stranger.get("/topics")["Location"] == "/catmq/login?next=/catmq/topics"
    assert stranger.get("/admin/")["Location"].startswith(
        "/catmq/admin/login/?next=/catmq/admin/"
    )
    for path in ("/login", "/nowhere"):
        assert leaks(text(stranger.get(path, headers=HTML))) == []
    wrong = {"username": "ada", "password": "wrong"}
    refused = [stranger.post("/login", wrong) for _ in range(9)][-1]
    assert refused.status_code == 429 and leaks(text(refused)) == []


def test_redirects_stay_below_the_prefix(world: dict[str, object]) -> None:
    ada = browser("ada", administrator=True)
    assert ada.post("/theme", {"theme": "dark"})["Location"] == "/catmq/"
    assert ada.post("/language", {"language": "zh-hans"})["Location"] == "/catmq/"
    assert (
        ada.post("/language", {"language": "en", "next": "/catmq/topics"})["Location"]
        == "/catmq/topics"
    )
    stopped = ada.post("/filters/save", {"page": "topics", "name": "all", "query": "q=o"})
    assert stopped["Location"].startswith("/catmq/topics")
    assert ada.post("/logout")["Location"] == "/catmq/login"
    login = {"username": "ada", "password": "enough characters"}
    assert ada.post("/login", login)["Location"] == "/catmq/"


def test_an_action_leads_back_below_the_prefix(world: dict[str, object]) -> None:
    ada = browser("ada", administrator=True)
    opened = ada.get("/groups/billing/stop")
    assert leaks(text(opened)) == []
    with pytest.MonkeyPatch.context() as patch:
        # Django's test client would follow the redirect with the prefix in the path.
        patch.setattr(Client, "_handle_redirects", lambda _self, answer, **_words: answer)
        done = carry_out(ada, "/groups/billing/stop")
    assert done["Location"].startswith("/catmq/groups/billing")


def test_cookies_are_for_the_prefix_only(world: dict[str, object]) -> None:
    ada = browser("ada", administrator=True)
    answers = [
        ada.post("/theme", {"theme": "dark"}),
        ada.post("/language", {"language": "en"}),
        ada.get("/messages?topic=orders&columns=body,key"),
        ada.post("/login", {"username": "ada", "password": "enough characters"}),
    ]
    cookies = [cookie for answer in answers for cookie in answer.cookies.values()]
    assert len(cookies) > 3
    assert {cookie["path"] for cookie in cookies} == {PREFIX}


def ask(
    path: str, method: str = "GET", **options: Any
) -> tuple[int, dict[str, str], bytes]:
    """Return status, headers and body of the server's answer to a request with this path."""
    environ = RequestFactory().generic(method, path, **options).environ
    answered: list[Any] = []
    answer: Any = wsgi.application(environ, lambda *words: answered.extend(words))  # type: ignore[arg-type,return-value]
    body = b"".join(answer)
    # Closes the static file, but not the test's connection to its database.
    request_finished.disconnect(close_old_connections)
    getattr(answer, "close", lambda: None)()
    request_finished.connect(close_old_connections)
    return int(answered[0].split()[0]), dict(answered[1]), body


@pytest.mark.parametrize(
    "shown", [PREFIX, ""], ids=["proxy leaves the prefix", "proxy removes it"]
)
def test_the_server_answers_with_the_prefix_and_without(
    world: dict[str, object], shown: str
) -> None:
    assert ask(f"{shown}/livez")[0] == 200
    assert ask(f"{shown}/api/v1")[0] == 200
    assert ask(f"{shown}/static/portal/portal.css")[0] == 200
    status, headers, _body = ask(f"{shown}/topics")
    assert (status, headers["Location"]) == (302, "/catmq/login?next=/catmq/topics")
    assert ask("/catmqx/livez", headers=HTML)[0] == 404
    assert ask(PREFIX)[1]["Location"] == "/catmq/login?next=/catmq/"


def test_the_api_names_a_new_resource_below_the_prefix(world: dict[str, object]) -> None:
    _key, plaintext = api_keys.create(
        name="k", rights={"admin": ["*"]}, actor=actors.command("test")
    )
    headers = {"Authorization": f"Bearer {plaintext}"}
    kind = "application/json"
    status, headers, _body = ask(
        "/catmq/api/v1/groups",
        "POST",
        data='{"name": "new"}',
        content_type=kind,
        headers=headers,
    )
    assert (status, headers["Location"]) == (201, "/catmq/api/v1/groups/new")
    _status, _headers, page = ask("/catmq/api/v1/docs")
    assert ADDRESS.findall(page.decode()) == []  # its links are relative


def test_the_servers_own_paths_cannot_be_a_prefix() -> None:
    """A path that begins so would have two meanings: a proxy may remove the prefix or leave
    it.
    """

    def first_segments(patterns: list[Any]) -> Iterator[str]:
        for one in patterns:
            segment = re.match(r"\^?([a-z-]*)", str(one.pattern))
            if segment and segment[1]:
                yield segment[1]
            elif isinstance(one, URLResolver):
                yield from first_segments(one.url_patterns)

    assert set(first_segments(get_resolver().url_patterns)) == OWN_SEGMENTS
