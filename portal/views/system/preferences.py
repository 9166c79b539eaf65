"""Look of the portal: remembered in a cookie, so it holds before the login too."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.http import url_has_allowed_host_and_scheme
from django.utils.translation import gettext as _
from django.views.decorators.http import require_POST
from django.views.i18n import set_language

from portal.auth.access import THEME_COOKIE, THEMES
from portal.kit import pages

YEAR_S = 365 * 86_400


@require_POST
def theme(request: HttpRequest) -> HttpResponse:
    """Remembers light, dark, or as the system, and goes back to the page."""
    wanted, back = request.POST.get("theme", ""), request.POST.get("next", "")
    safe = url_has_allowed_host_and_scheme(back, allowed_hosts={request.get_host()})
    response = HttpResponseRedirect(back if safe else pages.page_url("overview"))
    if wanted in THEMES:
        response.set_cookie(
            THEME_COOKIE, wanted, max_age=YEAR_S, samesite="Lax", httponly=True
        )
    return response


def language(request: HttpRequest) -> HttpResponse:
    """Remember the language as Django does, and go back to the page, or to the overview."""
    response: HttpResponse = set_language(request)
    # Django's own way out, which knows no path prefix
    if response.headers.get("Location") == "/":
        response["Location"] = pages.page_url("overview")
    return response


def keys(request: HttpRequest) -> HttpResponse:
    """The keys that lead around, for who has no script; others see them over any page."""
    return pages.render_page(request, "system/help", _("Keys"))
