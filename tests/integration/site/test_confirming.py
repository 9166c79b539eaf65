"""Actions that cannot be undone want the name again, on pages and of commands."""

from __future__ import annotations

import io

import pytest
from django.core.management import CommandError, call_command
from django.test import Client
from django.urls import URLPattern

from messagestore import retention
from messagestore.nodes import promotion
from metadata.actors import command
from metadata.brokers import registration
from metadata.brokers.registration import BrokerIdentity
from metadata.groups import groups
from metadata.users import api_keys
from portal.actions.action import CONFIRM_FIELD
from portal.urls import urlpatterns
from tests.support import rows
from tests.support.forms import browser, filled, text

pytestmark = pytest.mark.one_engine

ME = command("test")
COMMANDS = {
    "promote_node": ((), "to", promotion, "promote"),
    "adopt_restored_node": ((), "", promotion, "adopt"),
    "purge": (("--archive", "/nowhere"), "", retention, "purge"),
}


def deletions() -> list[URLPattern]:
    """The pages on which a name is typed again."""
    forms = (
        (one, getattr(getattr(one.callback, "view_class", None), "form_class", None))
        for one in urlpatterns
    )
    return [
        page
        for page, form in forms
        if form is not None and CONFIRM_FIELD in form.base_fields
    ]


@pytest.fixture
def ada(metadata_db: None) -> Client:
    """An administrator's browser, with one of everything that can be deleted, all called
    `orders`.
    """
    rows.node("orders")
    rows.topic("orders", queues=1)
    groups.create(name="orders", actor=ME)
    api_keys.create(name="orders", rights={"produce": ["*"]}, actor=ME)
    registration.heartbeat(
        identity=BrokerIdentity("orders", "http://b", "1.0", "b"), held=False
    )
    browser("orders")
    return browser("ada", administrator=True)


@pytest.mark.parametrize("page", deletions(), ids=lambda page: str(page.name))
def test_another_name_is_refused_before_the_page_says_what_would_happen(
    ada: Client, page: URLPattern
) -> None:
    url = "/" + str(page.pattern).replace("<str:name>", "orders")
    for typed in ("order", "Orders", " "):
        answer = filled(ada, url, confirm=typed)
        assert answer.status_code == 400 and 'name="confirmed"' not in text(answer), text(
            answer
        )
    assert "Type orders." in text(filled(ada, url, confirm="order"))


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_does_nothing_without_a_terminal_or_yes(
    metadata_db: None, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    words, _, module, verb = COMMANDS[name]
    done: list[object] = []
    monkeypatch.setattr(module, verb, lambda **given: done.append(given) or [])
    monkeypatch.setattr("sys.stdin", io.StringIO("orders\n"))
    with pytest.raises(CommandError, match="give --yes"):
        call_command(name, "orders", *words)
    monkeypatch.setattr("sys.stdin", Terminal("order\n"))
    with pytest.raises(CommandError, match="the name does not match"):
        call_command(name, "orders", *words)
    assert done == []
    monkeypatch.setattr("sys.stdin", Terminal("orders\n"))
    told(name, words)
    monkeypatch.setattr("sys.stdin", io.StringIO())
    told(name, (*words, "--yes"))
    assert len(done) == 2


class Terminal(io.StringIO):
    """A person who types."""

    def isatty(self) -> bool:
        """As a terminal."""
        return True


def told(name: str, words: tuple[str, ...]) -> None:
    """Runs a command whose verb was replaced; what it then has to tell is nothing."""
    try:
        call_command(name, "orders", *words)
    except AttributeError:
        assert name != "purge"  # the others tell of an outcome
