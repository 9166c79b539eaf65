"""Authentication: the one place where a logged-in person becomes an Actor, whose rights the
verbs check.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any
from urllib.parse import urlencode

from django import forms
from django.contrib import messages
from django.contrib.auth import logout
from django.contrib.auth.decorators import login_required
from django.contrib.auth.views import redirect_to_login
from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.utils.translation import gettext as _

from metadata.actors import Actor
from metadata.db import access
from metadata.users import accounts
from portal.auth import sessions

View = Callable[..., HttpResponseBase]
THEMES = ("auto", "light", "dark")
THEME_COOKIE = "theme"
MAX_FORM_IN_URL = 1500  # characters of a form that may stand in a URL


def login_required_page(view: View) -> View:
    """Let only users who logged in reach a view; it finds its actor in `request.actor`."""

    @functools.wraps(view)
    def seen(request: HttpRequest, *args: Any, **words: Any) -> HttpResponseBase:
        if sessions.has_ended(request):
            logout(request)
            return redirect_to_login(request.path)
        request.actor = actor_of(request)  # type: ignore[attr-defined]  # read by actor()
        return view(request, *args, **words)

    with_login = login_required(seen)

    @functools.wraps(view)
    def asked(request: HttpRequest, *args: Any, **words: Any) -> HttpResponseBase:
        if request.method == "POST" and not request.user.is_authenticated:
            return _back_to_form(request, getattr(view, "view_class", None))
        return with_login(request, *args, **words)

    return asked


def _back_to_form(request: HttpRequest, action: Any) -> HttpResponseBase:
    """The login, and then the form again: the session ended while it was filled in."""
    messages.warning(
        request,
        _(
            "Your session ended before you submitted, and nothing was changed. Enter passwords "
            "and long texts again."
        ),
    )
    form: type[forms.Form] = getattr(action, "form_class", forms.Form)
    typed = urlencode(_typed(request, form))
    return redirect_to_login(
        f"{request.path}?{typed}" if 0 < len(typed) <= MAX_FORM_IN_URL else request.path
    )


def _typed(request: HttpRequest, form: type[forms.Form]) -> dict[str, str]:
    """Return the sent fields that may stand in a URL: no passwords, no texts of messages."""
    kept = {}
    for name, field in form.base_fields.items():
        widget = field.widget
        if widget.is_hidden or isinstance(widget, forms.PasswordInput | forms.Textarea):
            continue
        value = widget.value_from_datadict(request.POST, request.FILES, name)
        if isinstance(value, bool):
            kept[name] = "on" if value else ""
        elif isinstance(value, str):
            kept[name] = value
    return kept


def actor_of(request: HttpRequest) -> Actor:
    """The actor of the person who is logged in. Raises MetadataUnavailable."""
    user: Any = request.user
    administrator = bool(user.is_superuser or user.is_staff)
    return accounts.actor_of(
        name=user.get_username(), administrator=administrator, address=address_of(request)
    )


def address_of(request: HttpRequest) -> str:
    """Return the address a request comes from."""
    return str(request.META.get("REMOTE_ADDR", ""))


def actor(request: HttpRequest) -> Actor:
    """The actor of a request on its way through a view."""
    found: Actor = request.actor  # type: ignore[attr-defined]  # set by login_required_page()
    return found


def may(request: HttpRequest, right: str, name: str = "*", *, what: str = "topic") -> bool:
    """Return True if the person may do something; what may not be done is not offered."""
    return access.may(actor(request), right, name, what=what)


def template_context(request: HttpRequest) -> dict[str, Any]:
    """Return what every template knows: the look that was chosen, and whether this is an
    administrator.
    """
    theme = request.COOKIES.get(THEME_COOKIE, "")
    who = getattr(request, "actor", None)
    return {
        "theme": theme if theme in THEMES else "auto",
        "themes": THEMES,
        "who": who,
        "is_administrator": who is not None and access.may(who, "admin", "*"),
    }
