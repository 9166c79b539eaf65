"""Pages: a template, a title, where it stands in the navigation, and what is on it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse

from portal.kit.tables import Table, Text


@dataclass(frozen=True, slots=True)
class Link:
    """A link or a button; `tone` is '' or 'danger'."""

    label: Text
    href: str
    tone: str = ""


@dataclass(frozen=True, slots=True)
class Fact:
    """A label and a value on a page about one thing; `href` leads to what is behind it."""

    label: Text
    value: Any
    href: str = ""
    tone: str = ""
    kind: str = "text"


def show(
    request: HttpRequest, template: str, title: Text, *, status: int = 200, **words: Any
) -> HttpResponse:
    """A page. `section` in `words` marks the place in the navigation."""
    return render(request, f"portal/{template}.html", {"title": title, **words}, status=status)


def list_page(
    request: HttpRequest, title: Text, table: Table, *, searched: bool = True, **words: Any
) -> HttpResponse:
    """A page with one list; `intro`, `actions` and `filters` in `words` stand above it."""
    query = request.GET.get("q", "")
    return show(request, "list", title, table=table, live=True, searched=searched, query=query, **words)


def to(name: str, *words: object) -> str:
    return reverse(name, args=words)
