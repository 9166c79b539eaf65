"""Theme and language of the portal, stored in cookies so that they apply before the login,
too.
"""

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
    """Store the theme in a cookie and return to the page."""
    theme_name, next_url = request.POST.get("theme", ""), request.POST.get("next", "")
    # A form of another site could redirect to any page.
    is_safe = url_has_allowed_host_and_scheme(next_url, allowed_hosts={request.get_host()})
    response = HttpResponseRedirect(next_url if is_safe else pages.page_url("overview"))
    if theme_name in THEMES:
        response.set_cookie(
            THEME_COOKIE, theme_name, max_age=YEAR_S, samesite="Lax", httponly=True
        )
    return response


def language(request: HttpRequest) -> HttpResponse:
    """Store the language as Django does, and return to the page or the overview."""
    response: HttpResponse = set_language(request)
    # Django redirects to / without a valid `next`. That ignores the path prefix.
    if response.headers.get("Location") == "/":
        response["Location"] = pages.page_url("overview")
    return response


def keys(request: HttpRequest) -> HttpResponse:
    """Show the keyboard shortcuts, for browsers without scripts. Others show them over any
    page.
    """
    return pages.render_page(request, "system/help", _("Keys"))
