"""Django's admin site as a read-only browser of the metadata: a part of the console, with its
frame, its menu and its login, and with names in the user's language.
"""

from __future__ import annotations

from typing import Any

from django.contrib.admin import AdminSite
from django.contrib.admin.forms import AdminAuthenticationForm
from django.http import HttpRequest, HttpResponseRedirect
from django.urls import reverse
from django.utils.translation import gettext, gettext_lazy

from portal.auth import access, sessions
from portal.auth.logins import LoginForm


class ConsoleLoginForm(LoginForm, AdminAuthenticationForm):
    """The portal's login form, for users of the admin site."""


class Console(AdminSite):
    """Django's admin site under the product's name."""

    site_title = gettext_lazy("CatMQ")
    site_header = gettext_lazy("CatMQ console")
    login_form = ConsoleLoginForm
    login_template = "portal/frame/login.html"
    index_title = gettext_lazy("All data, read-only")

    def has_permission(self, request: HttpRequest) -> bool:
        """Return True for a superuser whose session has not ended. Being staff is not
        enough.
        """
        allowed = super().has_permission(request) and request.user.is_superuser
        return allowed and not sessions.has_ended(request)

    def each_context(self, request: HttpRequest) -> dict[str, Any]:
        """Return the context of every admin page, with what the frame of the console needs."""
        context: dict[str, Any] = super().each_context(request)
        if not self.has_permission(request):
            return context
        # The pages of the console get these from login_required_page().
        return {
            **context,
            "section": "data",
            "who": access.actor_of(request),
            "is_administrator": True,
        }

    def password_change(
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> Any:
        """Redirect to the portal's own page, which writes the audit log and limits wrong
        passwords.
        """
        return HttpResponseRedirect(reverse("password"))

    def get_app_list(
        self, request: HttpRequest, app_label: str | None = None
    ) -> list[dict[str, Any]]:
        """Return the lists by application, with translated names."""
        apps: list[dict[str, Any]] = super().get_app_list(request, app_label)
        for app in apps:
            # Models have untranslated names, because metadata knows no languages.
            app["name"] = gettext(str(app["name"]))
            for model in app["models"]:
                model["name"] = gettext(str(model["name"]))
        return apps
