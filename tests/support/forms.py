"""Forms of the portal as a browser sends them: filled in, previewed, and confirmed."""

from __future__ import annotations

from html.parser import HTMLParser
from typing import Any

from django.contrib.auth import get_user_model
from django.test import Client

from metadata import actors
from metadata.users import accounts

Answer = Any  # Django's answer to a test client


def browser(name: str, *, administrator: bool = False) -> Client:
    """Return a client of a logged-in user, which is created if necessary."""
    people = get_user_model().objects
    if not people.filter(username=name).exists():
        actor = actors.command("test")
        accounts.create(
            name=name,
            password="enough characters",
            administrator=administrator,
            actor=actor,
        )
    client = Client()
    client.force_login(
        people.get(username=name), backend="django.contrib.auth.backends.ModelBackend"
    )
    return client


class _Inputs(HTMLParser):
    """Collects the form fields inside <main> with their values."""

    def __init__(self) -> None:
        super().__init__()
        self.found: dict[str, str] = {}
        self._inside = False
        self._select = self._area = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = dict(attrs)
        name = attributes.get("name") or ""
        if tag == "main":
            self._inside = True
        elif not self._inside:
            return
        elif (
            tag == "input"
            and name
            # A browser does not send a checkbox that is not checked.
            and (attributes.get("type") != "checkbox" or "checked" in attributes)
        ):
            self.found[name] = attributes.get("value") or (
                "on" if attributes.get("type") == "checkbox" else ""
            )
        elif tag == "select":
            self._select = name
        # Without a selected option, a browser sends the first.
        elif tag == "option" and (
            "selected" in attributes or self._select not in self.found
        ):
            self.found[self._select] = attributes.get("value") or ""
        elif tag == "textarea":
            self._area, self.found[name] = name, ""

    def handle_data(self, data: str) -> None:
        if self._area:
            self.found[self._area] += data

    def handle_endtag(self, tag: str) -> None:
        if tag == "textarea":
            self._area = ""


def fields(answer: Answer) -> dict[str, str]:
    """Return the values that the form of a page would send unchanged."""
    parser = _Inputs()
    parser.feed(answer.content.decode())
    return parser.found


def text(answer: Answer) -> str:
    """Return the HTML of a page."""
    return str(answer.content.decode())


def filled(client: Client, url: str, **typed: str) -> Answer:
    """Open a page, fill in its form, and return the preview."""
    page = client.get(url)
    assert page.status_code == 200, text(page)
    return client.post(url.split("?")[0], {**fields(page), **typed, "confirmed": ""})


def confirm(client: Client, url: str, preview: Answer) -> Answer:
    """Confirm a preview and return the page that follows."""
    assert fields(preview).get("confirmed") == "yes", text(preview)
    return client.post(url.split("?")[0], fields(preview), follow=True)


def carry_out(client: Client, url: str, **typed: str) -> Answer:
    """Fill in a form, preview it and confirm it."""
    return confirm(client, url, filled(client, url, **typed))
