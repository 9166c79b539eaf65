"""Passwords and keys in the portal: previewed without coming back, used once, shown once,
in no log.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.contrib.sessions.models import Session
from django.test import Client

from metadata.actors import command
from metadata.cache import snapshot
from metadata.models import ApiKey, AuditLog
from metadata.users import accounts, api_keys
from tests.support.forms import Answer, browser, carry_out, confirm, fields, filled, text

ME = command("test")
SECRET = "a very % secret <b> \N{ALIEN MONSTER} one"
Threads = Callable[..., list[Any]]


@pytest.fixture
def ada(metadata_db: None) -> Client:
    """An administrator's browser."""
    return browser("ada", administrator=True)


@pytest.fixture
def nothing_written(metadata_db: None, caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Fails if the secret stands in a log, in the audit log, or readable among the
    sessions.
    """
    with caplog.at_level(logging.DEBUG):
        yield
    assert SECRET not in caplog.text
    assert SECRET not in str(list(AuditLog.objects.values()))
    assert all(SECRET not in str(one.get_decoded()) for one in Session.objects.all())


def works(name: str, password: str) -> bool:
    """Whether somebody can log in so."""
    user = get_user_model().objects.get(username=name)
    return bool(user.check_password(password))


@pytest.mark.one_engine
@pytest.mark.usefixtures("nothing_written")
def test_a_user_is_made_after_a_preview_that_does_not_carry_the_password(
    ada: Client,
) -> None:
    seen = filled(ada, "/create/user", name="uma", password=SECRET, browse="orders*")
    assert SECRET not in text(seen) and "password" not in fields(seen)
    assert "sees names, states and figures" in text(seen) and "orders*" in text(seen)
    assert not get_user_model().objects.filter(username="uma").exists()

    assert "User uma was created" in text(confirm(ada, "/create/user", seen))
    assert works("uma", SECRET)
    assert "carried out once" in text(confirm(ada, "/create/user", seen))
    assert accounts.find_user(name="uma", actor=ME).rights == {"browse": ("orders*",)}


@pytest.mark.one_engine
@pytest.mark.usefixtures("nothing_written")
def test_a_user_is_changed_by_what_was_changed_and_a_password_only_if_one_was_typed(
    ada: Client,
) -> None:
    accounts.create(
        name="uma", password="enough characters", rights={"browse": ["a*"]}, actor=ME
    )
    assert "Nothing changes" in text(filled(ada, "/users/uma"))
    seen = filled(ada, "/users/uma", password=SECRET)
    assert "password will be changed" in text(seen) and works("uma", "enough characters")
    assert "was changed" in text(confirm(ada, "/users/uma", seen))
    assert works("uma", SECRET)

    carry_out(ada, "/users/uma", produce="b*")
    assert works("uma", SECRET)
    assert accounts.find_user(name="uma", actor=ME).rights == {
        "browse": ("a*",),
        "produce": ("b*",),
    }


@pytest.mark.one_engine
def test_two_administrators_who_change_one_user_do_not_undo_each_other(ada: Client) -> None:
    accounts.create(name="uma", password="enough characters", actor=ME)
    seen = filled(ada, "/users/uma", browse="a*")
    accounts.update(name="uma", administrator=False, active=False, rights={}, actor=ME)
    both = confirm(ada, "/users/uma", seen)
    assert both.status_code == 409 and "Another user saved changes" in text(both)
    confirm(ada, "/users/uma", both)
    view = accounts.find_user(name="uma", actor=ME)
    assert (view.active, view.rights) == (False, {"browse": ("a*",)})


@pytest.mark.one_engine
@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ({"name": "a b", "password": SECRET}, "a user name has"),
        ({"name": "ada", "password": SECRET}, "exists already"),
        ({"name": "uma", "password": "12345678901"}, "entirely numeric"),
        ({"name": "uma", "password": "short"}, "too short"),
    ],
)
def test_what_will_be_refused_is_said_in_the_preview(
    ada: Client, typed: dict[str, str], said: str
) -> None:
    seen = filled(ada, "/create/user", **typed)
    assert (
        seen.status_code in (400, 409) and said in text(seen) and SECRET not in text(seen)
    )
    assert get_user_model().objects.count() == 1


@pytest.mark.one_engine
def test_a_preview_whose_password_is_gone_asks_for_it_again_and_does_nothing(
    ada: Client,
) -> None:
    accounts.create(name="uma", password="enough characters", actor=ME)
    seen = filled(ada, "/users/uma", password=SECRET, browse="a*")
    Session.objects.exclude(session_key=ada.session.session_key).delete()
    answer = confirm(ada, "/users/uma", seen)
    assert answer.status_code == 400 and "page has expired" in text(answer)
    assert (
        works("uma", "enough characters")
        and accounts.find_user(name="uma", actor=ME).rights == {}
    )


@pytest.mark.one_engine
def test_a_kept_password_is_not_anothers_and_not_another_pages(ada: Client) -> None:
    seen = fields(filled(ada, "/create/user", name="uma", password=SECRET))
    for client, url in (
        (browser("eve", administrator=True), "/create/user"),
        (ada, "/users/ada"),
    ):
        answer = client.post(url, {**seen, "active": "on", "administrator": "on"})
        assert answer.status_code == 400, url
    assert not get_user_model().objects.filter(username="uma").exists() and works(
        "ada", "enough characters"
    )


@pytest.mark.one_engine
def test_whose_password_was_changed_is_logged_out(ada: Client) -> None:
    hers = browser("uma")
    assert hers.get("/topics").status_code == 200
    carry_out(ada, "/users/uma", password=SECRET)
    assert hers.get("/topics").status_code == 302
    assert works("uma", SECRET) and not works("uma", "enough characters")


def secret_of(answer: Answer) -> str:
    """The key that a page shows, '' if none."""
    found = re.search(r"catmq_[\w-]{20,}", text(answer))
    return found[0] if found else ""


@pytest.mark.one_engine
def test_a_key_is_shown_once_and_neither_a_reload_nor_the_way_back_shows_it_again(
    ada: Client,
) -> None:
    seen = filled(ada, "/create/key", name="till", produce="orders*")
    assert "Send to topics: orders*" in text(seen) and not ApiKey.objects.exists()
    shown = confirm(ada, "/create/key", seen)
    plaintext = secret_of(shown)
    assert snapshot.refresh() and snapshot.find_key(api_keys.digest(plaintext)) is not None
    assert shown["Cache-Control"] == "no-store"

    again = confirm(ada, "/create/key", seen)  # what a reload sends, and a second click
    assert "carried out once" in text(again) and not secret_of(again)
    for url in (
        "/create/key",
        "/keys",
        "/audit",
        "/audit?name=till",
        "/keys/till/limits",
        "/keys/till/delete",
    ):
        assert plaintext not in text(ada.get(url)), url
    assert ApiKey.objects.count() == 1
    assert all(plaintext not in str(one.get_decoded()) for one in Session.objects.all())


def test_two_clicks_at_once_make_one_key_and_show_it_once(
    ada: Client, in_threads: Threads
) -> None:
    sent = fields(filled(ada, "/create/key", name="till", produce="orders*"))

    def click() -> str:
        client = Client()
        client.cookies = ada.cookies
        return secret_of(client.post("/create/key", sent))

    assert sum(bool(found) for found in in_threads([click] * 4)) == 1
    assert (
        ApiKey.objects.count() == 1
        and AuditLog.objects.filter(kind="key", verb="create").count() == 1
    )


@pytest.mark.one_engine
def test_a_key_whose_name_is_taken_is_refused_in_the_preview_and_a_slower_one_at_the_end(
    ada: Client,
) -> None:
    seen = filled(ada, "/create/key", name="till", produce="orders*")
    api_keys.create(name="till", rights={"browse": ["*"]}, actor=ME)
    late = confirm(ada, "/create/key", seen)
    assert (
        late.status_code == 409 and "exists already" in text(late) and not secret_of(late)
    )
    early = filled(ada, "/create/key", name="till", produce="orders*")
    assert early.status_code == 409 and api_keys.find_key(name="till", actor=ME).rights == {
        "browse": ("*",)
    }
