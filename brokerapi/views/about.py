"""The API about itself: version and limits, schema, docs."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from django.http import Http404, HttpRequest, HttpResponse
from drf_spectacular.utils import extend_schema
from drf_spectacular.views import SpectacularAPIView

from brokerapi import docs
from brokerapi.endpoint import Call, Endpoint
from brokerapi.errors import respond
from brokerapi.schema import operation
from brokerapi.serializers import AboutAnswer
from metadata.config import Config, config

VERSION = "0.1.0"
API_VERSION = 1
NOT_A_LIMIT = "max_waiters"  # of a worker, not of a request
LIMITS = [field.name for field in fields(Config) if field.name.startswith(("request_max_", "max_"))]
LIMITS.remove(NOT_A_LIMIT)


class About(Endpoint):
    """/api/v1"""

    public = True

    @operation("about", tag="about", answer=AboutAnswer)
    def get(self, call: Call) -> HttpResponse:
        """Version and limits."""
        limits = {name: getattr(config, name) for name in LIMITS}
        about = {"name": "catmq", "version": VERSION, "api_version": API_VERSION}
        return call.answer({**about, "limits": limits})


class Schema(SpectacularAPIView):
    """/api/v1/schema: the framework's own view, as YAML or JSON"""

    authentication_classes = ()
    permission_classes = ()


class Docs(Endpoint):
    """/api/v1/docs"""

    public = True

    @extend_schema(exclude=True)
    def get(self, call: Call) -> HttpResponse:
        """A page for people: all operations and all error codes."""
        return HttpResponse(docs.page())


class Unknown(Endpoint):
    """Any other URL under /api"""

    @extend_schema(exclude=True)
    def dispatch(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        """404, whatever the method."""
        return respond(Http404())
