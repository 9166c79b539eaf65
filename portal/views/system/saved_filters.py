"""Saving and deleting filters. Both are easily undone, so there is no confirmation."""

from __future__ import annotations

from urllib.parse import parse_qsl, urlencode

from django.contrib import messages
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.translation import gettext as _
from django.views.decorators.http import require_POST

from metadata.errors import Invalid, NotFound
from metadata.users import saved_filters
from portal.auth import error_texts
from portal.auth.access import actor
from portal.kit import pages
from portal.kit.pages import page_url


@require_POST
def save(request: HttpRequest) -> HttpResponse:
    """Save a filter and return to the list with this filter."""
    page, name = _list_name(request), request.POST.get("name", "").strip()
    # Only parameters of filters are saved, not the page of the list.
    query = pages.filter_query(dict(parse_qsl(request.POST.get("query", ""))))
    try:
        saved_filters.save(page=page, name=name, query=query, actor=actor(request))
        messages.success(request, _("The filter %s was saved.") % name)
    except Invalid as error:
        messages.error(request, error_texts.describe_error(error))
    return _redirect_to_list(page, query)


@require_POST
def delete(request: HttpRequest) -> HttpResponse:
    """Delete a filter and return to the list as it was."""
    page, name = _list_name(request), request.POST.get("name", "")
    try:
        saved_filters.delete(page=page, name=name, actor=actor(request))
        messages.success(request, _("The filter %s was deleted.") % name)
    except NotFound as error:
        messages.error(request, error_texts.describe_error(error))
    return _redirect_to_list(page, urlencode(parse_qsl(request.POST.get("query", ""))))


def _list_name(request: HttpRequest) -> str:
    """Return the name of the list. Raises Invalid."""
    page = request.POST.get("page", "")
    if page not in pages.LISTS_WITH_FILTERS:
        raise Invalid.field(
            "page", _("must be one of: %s") % ", ".join(sorted(pages.LISTS_WITH_FILTERS))
        )
    return page


def _redirect_to_list(page: str, query: str) -> HttpResponse:
    return HttpResponseRedirect(f"{page_url(page)}?{query}" if query else page_url(page))
