"""Saved filters: a search of a list by a name, for the user who saved it and nobody else."""

from __future__ import annotations

import re

import pytest
from django.test import Client

from metadata.models import AuditLog, SavedFilter
from metadata.users import accounts, saved_filters
from tests.support.forms import browser, text
from tests.support.rows import ME


@pytest.fixture
def ada(metadata_db: None) -> Client:
    """An administrator's browser."""
    return browser("ada", administrator=True)


def save(client: Client, *, name: str, query: str, page: str = "topics") -> str:
    """The page that follows."""
    fields = {"page": page, "name": name, "query": query}
    return text(client.post("/filters/save", fields, follow=True))


def links(client: Client, page: str = "/topics") -> list[tuple[str, str]]:
    """The address and name of each saved filter on a page."""
    return re.findall(
        r'<li><span><a href="([^"]*)"[^>]*>([^<]*)</a><form', text(client.get(page))
    )


@pytest.mark.one_engine
def test_a_saved_filter_is_a_link_on_its_page_for_its_user_alone(ada: Client) -> None:
    said = save(ada, name="mine & yours", query="q=bil&sort=-lag&page=3&columns=key")
    assert "The filter mine &amp; yours was saved." in said
    assert links(ada) == [("?q=bil&amp;sort=-lag", "mine &amp; yours")]
    assert links(ada, "/groups") == [] == links(browser("bob"))
    assert 'value="bil"' in text(ada.get("/topics?q=bil&sort=-lag"))


def test_the_same_name_replaces_and_another_case_is_another_name(ada: Client) -> None:
    for name, query in (("a", "q=1"), ("a", "q=2"), ("A", "q=3")):
        save(ada, name=name, query=query)
    assert sorted(links(ada)) == [("?q=2", "a"), ("?q=3", "A")]


@pytest.mark.one_engine
def test_a_saved_filter_is_deleted_by_its_user(ada: Client) -> None:
    save(ada, name="a", query="q=1")
    words = {"page": "topics", "name": "a", "query": "q=1"}
    refused = text(browser("bob").post("/filters/delete", words, follow=True))
    assert "bob has no saved filter a" in refused and SavedFilter.objects.count() == 1
    assert "was deleted" in text(ada.post("/filters/delete", words, follow=True))
    assert links(ada) == []
    assert sorted(
        AuditLog.objects.filter(kind="filter").values_list("verb", "name", "actor_name")
    ) == [
        ("delete", "topics/a", "ada"),
        ("save", "topics/a", "ada"),
    ]


@pytest.mark.one_engine
@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"name": " "}, "has 1 to 60 characters"),
        ({"name": "x" * 61}, "has 1 to 60 characters"),
        ({"name": "a\x00b"}, "has 1 to 60 characters"),
        ({"query": "page=2"}, "a filter has 1 to 2000 characters"),
        ({"query": "q=" + "x" * 2001}, "a filter has 1 to 2000 characters"),
        ({"page": "https://elsewhere.example"}, "must be one of: alarms, audit"),
    ],
)
def test_a_filter_that_cannot_be_saved_says_why(
    ada: Client, fields: dict[str, str], says: str
) -> None:
    assert says in save(ada, **{"name": "a", "query": "q=1", **fields})
    assert SavedFilter.objects.count() == 0


@pytest.mark.one_engine
def test_filters_of_a_page_are_bounded_and_go_with_their_user(
    ada: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(saved_filters, "MAX_FILTERS", 1)
    bob = browser("bob")
    save(bob, name="a", query="q=1")
    assert "at most 1 saved filters" in save(bob, name="b", query="q=1")
    assert "was saved" in save(bob, name="a", query="q=2"), "it is replaced"
    save(ada, name="a", query="q=1")
    accounts.delete(name="bob", confirm="bob", actor=ME)
    assert [one.user for one in SavedFilter.objects.all()] == ["ada"]
