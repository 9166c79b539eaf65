"""Views for requests that Django refuses: a problem document for an API client, a page for
a browser.
"""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse

from brokerapi.http import errors
from brokerapi.http.handler import PATHS
from portal.auth import error_pages


def handler400(request: HttpRequest, exception: Exception) -> HttpResponse:
    """Answer a request that Django refuses, such as a host that is not allowed."""
    return errors.handler400(request, exception)


def handler403(request: HttpRequest, exception: Exception) -> HttpResponse:
    if _is_api_request(request):
        return errors.handler403(request, exception)
    return error_pages.handler403(request, exception)


def handler404(request: HttpRequest, exception: Exception) -> HttpResponse:
    if _is_api_request(request):
        return errors.handler404(request, exception)
    return error_pages.handler404(request, exception)


def handler500(request: HttpRequest) -> HttpResponse:
    """Answer after an unexpected error, which Django has logged."""
    return (
        errors.handler500(request)
        if _is_api_request(request)
        else error_pages.handler500(request)
    )


def _is_api_request(request: HttpRequest) -> bool:
    """Return True if the client does not accept HTML, as browsers do."""
    return request.path_info.startswith(PATHS) or "text/html" not in request.headers.get(
        "Accept", ""
    )
