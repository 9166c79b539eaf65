"""Authentication of portal users.

Only here a logged-in user becomes an Actor, whose rights the functions of the lower layers
check.
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

from metadata import log_context
from metadata.actors import Actor
from metadata.db import access
from metadata.rules.rights import Right
from metadata.users import accounts
from portal.auth import sessions

View = Callable[..., HttpResponseBase]
THEMES = ("auto", "light", "dark")
THEME_COOKIE = "theme"
# Longer URLs are refused by some proxies.
MAX_FORM_IN_URL = 1500


def login_required_page(view: View) -> View:
    """Return a view that only logged-in users reach. It finds its actor in `request.actor`."""

    @functools.wraps(view)
    def view_with_actor(
        request: HttpRequest, *args: Any, **arguments: Any
    ) -> HttpResponseBase:
        if sessions.has_ended(request):
            # Before the actor is looked up: an ended session has no rights.
            logout(request)
            return redirect_to_login(request.path)
        request.actor = actor_of(request)  # type: ignore[attr-defined]  # read by actor()
        log_context.add_fields(actor=actor(request))
        return view(request, *args, **arguments)

    with_login = login_required(view_with_actor)

    @functools.wraps(view)
    def view_or_login(
        request: HttpRequest, *args: Any, **arguments: Any
    ) -> HttpResponseBase:
        # Django would redirect to the login and lose the fields of the submitted form.
        if request.method == "POST" and not request.user.is_authenticated:
            return _redirect_to_login(request, getattr(view, "view_class", None))
        return with_login(request, *args, **arguments)

    return view_or_login


def _redirect_to_login(request: HttpRequest, action: Any) -> HttpResponseBase:
    """Redirect to the login and then back to the form, because the session ended while it
    was filled in.
    """
    messages.warning(
        request,
        _(
            "Your session ended before you submitted, and nothing was changed. Enter passwords "
            "and long texts again."
        ),
    )
    form_class: type[forms.Form] = getattr(action, "form_class", forms.Form)
    query = urlencode(_fields_for_url(request, form_class))
    return redirect_to_login(
        f"{request.path}?{query}" if 0 < len(query) <= MAX_FORM_IN_URL else request.path
    )


def _fields_for_url(request: HttpRequest, form_class: type[forms.Form]) -> dict[str, str]:
    """Return the submitted fields that may stand in a URL: no passwords, no texts of
    messages.
    """
    values = {}
    for name, field in form_class.base_fields.items():
        widget = field.widget
        if widget.is_hidden or isinstance(widget, forms.PasswordInput | forms.Textarea):
            continue
        value = widget.value_from_datadict(request.POST, request.FILES, name)
        if isinstance(value, bool):
            values[name] = "on" if value else ""
        elif isinstance(value, str):
            values[name] = value
    return values


def actor_of(request: HttpRequest) -> Actor:
    """Return the actor of the logged-in user. Raises MetadataUnavailable."""
    user: Any = request.user
    administrator = bool(user.is_superuser or user.is_staff)
    return accounts.user_actor(
        name=user.get_username(), administrator=administrator, address=address_of(request)
    )


def address_of(request: HttpRequest) -> str:
    """Return the address that a request comes from."""
    return str(request.META.get("REMOTE_ADDR", ""))


def actor(request: HttpRequest) -> Actor:
    """Return the actor of a request, which login_required_page() has set."""
    actor: Actor = request.actor  # type: ignore[attr-defined]  # set by login_required_page()
    return actor


def may(
    request: HttpRequest, right: Right, name: str = "*", *, what: str = "topic"
) -> bool:
    """Return True if the user has a right. Pages do not offer actions without it."""
    return access.may(actor(request), right, name, what=what)


def template_context(request: HttpRequest) -> dict[str, Any]:
    """Return the context of every template: the theme, the actor, and whether it is an
    administrator.
    """
    theme = request.COOKIES.get(THEME_COOKIE, "")
    current_actor = getattr(request, "actor", None)
    return {
        "theme": theme if theme in THEMES else "auto",
        "themes": THEMES,
        "who": current_actor,
        "is_administrator": current_actor is not None
        and access.may(current_actor, Right.ADMIN, "*"),
    }
