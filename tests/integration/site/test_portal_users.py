"""Accounts of the portal that go: with their rights and sessions, never the last
administrator.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from django.contrib.auth import get_user_model
from django.test import Client

from messagestore.topology import topics
from metadata.actors import Actor, command
from metadata.errors import Conflict, Forbidden, Invalid, NotFound
from metadata.models import AuditLog, UserRights
from metadata.users import accounts
from tests.support.forms import browser, carry_out, confirm, filled, text

ME = command("test")


@pytest.fixture
def ada(metadata_db: None) -> Client:
    """An administrator's browser."""
    return browser("ada", administrator=True)


def names() -> list[str]:
    """Of all accounts."""
    return [one.name for one in accounts.list_users(actor=ME)]


@pytest.mark.one_engine
def test_an_account_goes_with_its_rights_and_sessions_and_the_audit_log_keeps_who_it_was(
    ada: Client, make_node: Callable[..., str]
) -> None:
    make_node("main")
    topics.create(name="orders", queues=1, actor=ME, settings={"owners": "olga, bob"})
    accounts.create(
        name="bob", password="enough characters", rights={"browse": ["a*"]}, actor=ME
    )
    bob = browser("bob")
    assert bob.get("/").status_code == 200
    assert 'href="/users/bob/delete"' in text(ada.get("/users"))
    seen = filled(ada, "/users/bob/delete", confirm="bob")
    assert "stays an owner of orders" in text(seen) and names() == ["ada", "bob"]
    assert bob.get("/").status_code == 200, "a preview ends no session"
    assert "User bob was deleted." in text(confirm(ada, "/users/bob/delete", seen))
    assert names() == ["ada"] and not UserRights.objects.filter(name="bob").exists()
    assert bob.get("/")["Location"].startswith("/login")
    row = AuditLog.objects.get(verb="delete", kind="user")
    before = {
        "administrator": False,
        "active": True,
        "email": "",
        "rights": {"browse": ["a*"]},
    }
    assert (row.actor_name, row.name, row.before, row.after) == ("ada", "bob", before, None)


@pytest.mark.one_engine
def test_whoever_gets_the_name_later_has_none_of_the_rights(ada: Client) -> None:
    accounts.create(
        name="bob", password="enough characters", rights={"manage": ["*"]}, actor=ME
    )
    accounts.delete(name="bob", confirm="bob", actor=ME)
    # as a first login by LDAP does
    get_user_model().objects.create_user("bob", password="enough characters")
    assert accounts.find_user(name="bob", actor=ME).rights == {}


@pytest.mark.one_engine
def test_the_last_administrator_who_may_log_in_stays(ada: Client) -> None:
    accounts.create(name="eve", password="enough characters", administrator=True, actor=ME)
    accounts.update(name="eve", administrator=True, active=False, rights={}, actor=ME)
    refused = filled(ada, "/users/ada/delete", confirm="ada")
    assert refused.status_code == 409 and "the last administrator" in text(refused)
    with pytest.raises(Conflict, match="the last administrator"):
        accounts.delete(name="ada", confirm="ada", actor=ME)
    assert names() == ["ada", "eve"]
    accounts.update(name="eve", administrator=True, active=True, rights={}, actor=ME)
    assert "Log in" in text(carry_out(ada, "/users/ada/delete", confirm="ada")), (
        "who deletes oneself is out"
    )
    assert names() == ["eve"]


def test_a_deletion_needs_the_name_once_more_an_account_and_an_administrator(
    ada: Client,
) -> None:
    accounts.create(name="bob", password="enough characters", actor=ME)
    with pytest.raises(Invalid, match="must be confirmed"):
        accounts.delete(name="bob", confirm="bop", actor=ME)
    with pytest.raises(NotFound, match="does not exist"):
        accounts.delete(name="Bob", confirm="Bob", actor=ME)
    somebody = Actor(kind="user", name="uma", rights={"manage": ("*",), "admin": ("b*",)})
    with pytest.raises(Forbidden):
        accounts.delete(name="bob", confirm="bob", actor=somebody)
    assert names() == ["ada", "bob"] and not AuditLog.objects.filter(verb="delete").exists()


@pytest.mark.one_engine
@pytest.mark.parametrize(
    ("rights", "sentence"),
    [
        ({"browse": "*"}, "bob sees names, states and figures, and reads messages of *."),
        (
            {"manage": "a*"},
            "bob sees names, states and figures, but no headers or bodies of messages.",
        ),
    ],
)
def test_the_preview_of_an_account_says_whether_it_reads_messages(
    ada: Client, rights: dict[str, str], sentence: str
) -> None:
    seen = filled(ada, "/create/user", name="bob", password="enough characters", **rights)
    assert sentence in text(seen)
