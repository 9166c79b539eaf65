"""Forms of the portal as a browser sends them: filled in, looked at, confirmed with what
the page carries.
"""

from __future__ import annotations

from html.parser import HTMLParser
from typing import Any

from django.contrib.auth import get_user_model
from django.test import Client

from metadata import actors
from metadata.users import accounts

Answer = Any  # Django's answer to a test client


def browser(name: str, *, administrator: bool = False) -> Client:
    """The browser of somebody who logged in."""
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
    """The fields of the form inside <main>, as they stand there."""

    def __init__(self) -> None:
        super().__init__()
        self.found: dict[str, str] = {}
        self._inside = False
        self._select = self._area = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        of = dict(attrs)
        name = of.get("name") or ""
        if tag == "main":
            self._inside = True
        elif not self._inside:
            return
        elif tag == "input" and name and (of.get("type") != "checkbox" or "checked" in of):
            self.found[name] = of.get("value") or (
                "on" if of.get("type") == "checkbox" else ""
            )
        elif tag == "select":
            self._select = name
        elif tag == "option" and ("selected" in of or self._select not in self.found):
            self.found[self._select] = of.get("value") or ""
        elif tag == "textarea":
            self._area, self.found[name] = name, ""

    def handle_data(self, data: str) -> None:
        if self._area:
            self.found[self._area] += data

    def handle_endtag(self, tag: str) -> None:
        if tag == "textarea":
            self._area = ""


def fields(answer: Answer) -> dict[str, str]:
    """What the form of a page would send as it stands."""
    parser = _Inputs()
    parser.feed(answer.content.decode())
    return parser.found


def text(answer: Answer) -> str:
    """What a page says."""
    return str(answer.content.decode())


def filled(client: Client, url: str, **typed: str) -> Answer:
    """Opens a page, fills its form in, and asks what would happen."""
    opened = client.get(url)
    assert opened.status_code == 200, text(opened)
    return client.post(url.split("?")[0], {**fields(opened), **typed, "confirmed": ""})


def confirm(client: Client, url: str, preview: Answer) -> Answer:
    """Presses the button below what would happen; the page that follows."""
    assert fields(preview).get("confirmed") == "yes", text(preview)
    return client.post(url.split("?")[0], fields(preview), follow=True)


def carry_out(client: Client, url: str, **typed: str) -> Answer:
    """Fills in, looks, confirms."""
    return confirm(client, url, filled(client, url, **typed))
