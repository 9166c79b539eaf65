"""Who asks: the one place where a person who logged in becomes an Actor, whose rights the verbs check."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from django.contrib.auth.decorators import login_required
from django.http import HttpRequest
from django.http.response import HttpResponseBase

from metadata import access, users
from metadata.actors import Actor

View = Callable[..., HttpResponseBase]
THEMES = ("auto", "light", "dark")
THEME_COOKIE = "theme"


def for_people(view: View) -> View:
    """A view that only people who logged in reach; it finds its actor in `request.actor`."""

    @functools.wraps(view)
    def seen(request: HttpRequest, *args: Any, **words: Any) -> HttpResponseBase:
        request.actor = actor_of(request)  # type: ignore[attr-defined]  # read by actor()
        return view(request, *args, **words)

    return login_required(seen)


def actor_of(request: HttpRequest) -> Actor:
    """The actor of the person who is logged in. Raises MetadataUnavailable."""
    user: Any = request.user
    administrator = bool(user.is_superuser or user.is_staff)
    return users.actor_of(name=user.get_username(), administrator=administrator, address=address_of(request))


def address_of(request: HttpRequest) -> str:
    """Where a request comes from."""
    return str(request.META.get("REMOTE_ADDR", ""))


def actor(request: HttpRequest) -> Actor:
    """The actor of a request on its way through a view."""
    found: Actor = request.actor  # type: ignore[attr-defined]  # set by for_people()
    return found


def may(request: HttpRequest, right: str, name: str = "*") -> bool:
    """Whether the person may do something; what may not be done is not offered."""
    return access.may(actor(request), right, name)


def known(request: HttpRequest) -> dict[str, Any]:
    """What every template knows: the look that was chosen, and whether this is an administrator."""
    theme = request.COOKIES.get(THEME_COOKIE, "")
    who = getattr(request, "actor", None)
    return {
        "theme": theme if theme in THEMES else "auto",
        "themes": THEMES,
        "who": who,
        "is_administrator": who is not None and access.may(who, "admin", "*"),
    }
