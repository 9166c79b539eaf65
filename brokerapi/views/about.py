"""The API about itself: version, features and limits, schema, docs."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from django.http import Http404, HttpRequest, HttpResponse
from drf_spectacular.utils import extend_schema

from brokerapi import docs, try_it
from brokerapi.endpoint import Call, Endpoint, PublicEndpoint
from brokerapi.http.errors import respond
from brokerapi.http.parsers import read_query
from brokerapi.http.renderers import takes_gzip
from brokerapi.schema import operation
from brokerapi.shapes.base import SchemaQuery
from brokerapi.shapes.key_shapes import AboutAnswer
from metadata.config import Config, config
from metadata.release import VERSION

API_VERSION = 1
# Optional fields that brokers of an earlier release refuse. A client looks here first.
# pull_commit: the field `commit` of a pull.
FEATURES = ("pull_commit",)
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


class About(PublicEndpoint):
    @operation("about", tag="about", answer=AboutAnswer)
    def get(self, call: Call) -> HttpResponse:
        """Version, features and limits."""
        # The names are read from Config, so that a new limit appears here by itself.
        limits = {name: getattr(config, name) for name in LIMITS}
        version_info = {"name": "catmq", "version": VERSION, "api_version": API_VERSION}
        return call.answer({**version_info, "features": FEATURES, "limits": limits})


class Schema(PublicEndpoint):
    @extend_schema(exclude=True)
    def get(self, request: HttpRequest) -> HttpResponse:
        """Return the OpenAPI schema, as YAML, or as JSON if the query or `Accept` asks for it."""
        kind = read_query(request, SchemaQuery).format
        if not kind:
            kind = "json" if "json" in request.META.get("HTTP_ACCEPT", "") else "yaml"
        gzipped = takes_gzip(request)
        response = HttpResponse(docs.schema(kind, packed=gzipped), MEDIA_TYPES[kind])
        if gzipped:
            response["Content-Encoding"] = "gzip"
        response["Vary"] = "Accept, Accept-Encoding"
        return response

    def _answer(self, request: HttpRequest, url_arguments: dict[str, Any]) -> HttpResponse:
        """Answer without a Call: it would refuse `Accept` headers that name YAML or OpenAPI
        types.
        """
        return (
            self.get(request)
            if request.method in ("GET", "HEAD")
            else self._not_allowed(request)
        )


class Docs(PublicEndpoint):
    @extend_schema(exclude=True)
    def get(self, call: Call) -> HttpResponse:
        """A readable page: all operations and all error codes."""
        return HttpResponse(docs.page(), headers=PAGE_HEADERS)


class Script(PublicEndpoint):
    """The script of the docs page."""

    @extend_schema(exclude=True)
    def get(self, call: Call) -> HttpResponse:
        """Return the script. Browsers revalidate it, so that they notice an upgrade."""
        text = try_it.SCRIPT.read_bytes()
        return HttpResponse(
            text, "text/javascript; charset=utf-8", headers={"Cache-Control": "no-cache"}
        )


class Unknown(Endpoint):
    """Any other URL under /api."""

    @extend_schema(exclude=True)
    def dispatch(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        """Answer 404, whatever the method."""
        return respond(Http404())
