"""The API about itself: version and limits, schema, docs."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from django.http import Http404, HttpRequest, HttpResponse
from drf_spectacular.utils import extend_schema

from brokerapi import docs, try_it
from brokerapi.endpoint import Call, Endpoint
from brokerapi.http.errors import respond
from brokerapi.http.parsers import read_query
from brokerapi.http.renderers import takes_gzip
from brokerapi.schema import operation
from brokerapi.shapes.base import SchemaQuery
from brokerapi.shapes.key_shapes import AboutAnswer
from metadata.config import Config, config
from metadata.release import VERSION

API_VERSION = 1
NOT_A_LIMIT = "max_waiters"  # of a worker, not of a request
LIMITS = [
    field.name
    for field in fields(Config)
    if field.name.startswith(("request_max_", "max_"))
]
LIMITS.remove(NOT_A_LIMIT)
PAGE_HEADERS = {"Content-Security-Policy": docs.POLICY, "Referrer-Policy": "no-referrer"}
MEDIA_TYPES = {
    "yaml": "application/vnd.oai.openapi",
    "json": "application/vnd.oai.openapi+json",
}


class About(Endpoint):
    public = True

    @operation("about", tag="about", answer=AboutAnswer)
    def get(self, call: Call) -> HttpResponse:
        """Version and limits."""
        limits = {name: getattr(config, name) for name in LIMITS}
        about = {"name": "catmq", "version": VERSION, "api_version": API_VERSION}
        return call.answer({**about, "limits": limits})


class Schema(Endpoint):
    public = True

    @extend_schema(exclude=True)
    def get(self, request: HttpRequest) -> HttpResponse:
        """Return the OpenAPI schema, as YAML, or as JSON if the query or `Accept` says so."""
        kind = read_query(request, SchemaQuery).format
        if not kind:
            kind = "json" if "json" in request.META.get("HTTP_ACCEPT", "") else "yaml"
        packed = takes_gzip(request)
        response = HttpResponse(docs.schema(kind, packed=packed), MEDIA_TYPES[kind])
        if packed:
            response["Content-Encoding"] = "gzip"
        response["Vary"] = "Accept, Accept-Encoding"
        return response

    def _answer(self, request: HttpRequest, words: dict[str, Any]) -> HttpResponse:
        """Without the API's own formats: it is asked for in others."""
        return (
            self.get(request)
            if request.method in ("GET", "HEAD")
            else self._not_allowed(request)
        )


class Docs(Endpoint):
    public = True

    @extend_schema(exclude=True)
    def get(self, call: Call) -> HttpResponse:
        """A readable page: all operations and all error codes."""
        return HttpResponse(docs.page(), headers=PAGE_HEADERS)


class Script(Endpoint):
    """The script of the docs page."""

    public = True

    @extend_schema(exclude=True)
    def get(self, call: Call) -> HttpResponse:
        """Return it; a browser asks again after another release was started."""
        text = try_it.SCRIPT.read_bytes()
        return HttpResponse(
            text, "text/javascript; charset=utf-8", headers={"Cache-Control": "no-cache"}
        )


class Unknown(Endpoint):
    """Any other URL under /api"""

    @extend_schema(exclude=True)
    def dispatch(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        """404, whatever the method."""
        return respond(Http404())
