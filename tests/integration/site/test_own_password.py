"""The change of one's own password: knowing the old one, counted, audited; sessions that
end in time.
"""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.contrib.sessions.models import Session
from django.http import HttpRequest
from django.test import Client

from metadata.actors import Actor, command
from metadata.errors import Conflict, Forbidden, Invalid
from metadata.models import AuditLog
from metadata.users import accounts
from portal.auth import logins, sessions
from tests.support.forms import browser, carry_out, filled, text

pytestmark = pytest.mark.one_engine

OLD, NEW = "enough characters", "quite other ones"
TYPED = {"old": OLD, "password": NEW, "again": NEW}


@pytest.fixture
def uma(metadata_db: None) -> Client:
    """Somebody without any right."""
    return browser("uma")


def works(password: str) -> bool:
    """Return True if uma logs in so."""
    return bool(get_user_model().objects.get(username="uma").check_password(password))


def test_a_password_is_changed_by_whoever_knows_the_old_one_and_other_sessions_end(
    uma: Client,
) -> None:
    elsewhere = browser("uma")
    assert elsewhere.get("/").status_code == 200
    assert 'href="/password"' in text(uma.get("/"))
    assert "Your password was changed" in text(carry_out(uma, "/password", **TYPED))
    assert works(NEW) and uma.get("/").status_code == 200
    assert elsewhere.get("/")["Location"].startswith("/login")
    row = AuditLog.objects.get(verb="change_password")
    assert (row.actor_kind, row.actor_name, row.name, row.before) == (
        "user",
        "uma",
        "uma",
        None,
    )
    assert NEW not in str(row.after)


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ({"old": "wrong"}, "Wrong password"),
        ({"again": "another one"}, "The two passwords differ"),
        ({"password": "short", "again": "short"}, "at least 10 characters"),
        ({"password": "1234567890123", "again": "1234567890123"}, "entirely numeric"),
    ],
)
def test_a_wrong_or_easy_password_is_refused_and_changes_nothing(
    uma: Client, typed: Any, said: str
) -> None:
    answer = filled(uma, "/password", **{**TYPED, **typed})
    assert answer.status_code == 400 and said in text(answer)
    assert works(OLD) and not AuditLog.objects.filter(verb="change_password").exists()


def test_old_passwords_cannot_be_tried_without_end(metadata_db: None) -> None:
    nora = browser("nora")
    tries = [
        nora.post("/password", {**TYPED, "old": "wrong"}).status_code for _ in range(9)
    ]
    assert tries[0] == 400 and tries[-1] == 429
    assert nora.post("/password", TYPED).status_code == 429


def test_a_key_has_no_password_and_an_account_of_another_service_none_here(
    uma: Client,
) -> None:
    with pytest.raises(Forbidden):
        accounts.change_own_password(password=NEW, actor=Actor(kind="key", name="uma"))
    account = get_user_model().objects.get(username="uma")
    account.set_unusable_password()
    account.save()
    with pytest.raises(Conflict, match="change it there"):
        accounts.change_own_password(password=NEW, actor=Actor(kind="user", name="uma"))


def test_the_admin_has_no_page_of_its_own_for_that(metadata_db: None) -> None:
    answer = browser("ada", administrator=True).get("/admin/password_change/")
    assert (answer.status_code, answer["Location"]) == (302, "/password")


def test_a_session_ends_an_hour_after_the_last_page_and_polls_are_no_pages(
    uma: Client,
) -> None:
    def expiry() -> Any:
        return Session.objects.get(pk=uma.session.session_key).expire_date

    first = uma.get("/")
    assert first.cookies["sessionid"]["max-age"] == 3600
    began = expiry()
    polled = uma.get("/", headers={"HX-Request": "true"})
    assert "sessionid" not in polled.cookies and expiry() == began
    uma.get("/topics")
    assert expiry() > began


@pytest.mark.parametrize("url", ["/", "/admin/"])
def test_a_session_ends_half_a_day_after_its_login_however_busy_it_is(
    metadata_db: None, url: str
) -> None:
    ada = browser("ada", administrator=True)
    assert ada.get(url).status_code == 200
    session = ada.session
    session[sessions.BEGAN] -= 12 * sessions.HOUR_MS
    session.save()
    answer = ada.get(url)
    assert answer.status_code == 302 and "/login" in answer["Location"]


def test_a_page_whose_session_is_ended_meanwhile_leads_to_the_login(
    uma: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    prolong = sessions.prolong

    def ended_elsewhere(request: HttpRequest) -> None:
        prolong(request)
        Session.objects.all().delete()

    monkeypatch.setattr(sessions, "prolong", ended_elsewhere)
    answer = uma.get("/topics")
    assert (answer.status_code, answer["Location"]) == (302, "/login?next=/topics")


def test_the_old_password_waits_for_its_turn_as_a_login_does(
    uma: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logins, "WAIT_S", 0.01)
    with logins.turn():
        answer = filled(uma, "/password", **TYPED)
    assert answer.status_code == 503 and "Try again" in text(answer)
    assert filled(uma, "/password", **TYPED).status_code == 200


def test_a_password_like_the_name_is_refused(metadata_db: None) -> None:
    with pytest.raises(Invalid, match="too similar to the username"):
        accounts.create(
            name="production-team", password="production-team", actor=command("test")
        )
