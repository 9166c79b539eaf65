"""The OpenAPI schema: how endpoints describe themselves, and how msgspec structs become
components.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import msgspec
from drf_spectacular.extensions import (
    OpenApiAuthenticationExtension,
    OpenApiSerializerExtension,
)
from drf_spectacular.openapi import AutoSchema
from drf_spectacular.plumbing import ResolvedComponent
from drf_spectacular.utils import (
    OpenApiParameter,
    OpenApiResponse,
    extend_schema,
    inline_serializer,
)
from rest_framework import serializers

from brokerapi.http.errors import Problem

F = TypeVar("F", bound=Callable[..., Any])
MEDIA_TYPES = ["application/json", "application/msgpack"]
REFERENCE = "#/components/schemas/{name}"


class StructExtension(OpenApiSerializerExtension):  # type: ignore[no-untyped-call]
    """Documents a msgspec struct; the structs it contains become components of their own."""

    target_class = "msgspec.Struct"
    match_subclasses = True

    def get_name(self, auto_schema: AutoSchema, direction: str) -> str:
        return str(self.target.__name__)

    def map_serializer(self, auto_schema: AutoSchema, direction: str) -> dict[str, Any]:
        (own,), parts = msgspec.json.schema_components(
            [self.target], ref_template=REFERENCE
        )
        for name, schema in parts.items():
            if name != self.target.__name__:
                component: ResolvedComponent = ResolvedComponent(  # type: ignore[no-untyped-call]
                    name=name,
                    type=ResolvedComponent.SCHEMA,
                    object=name,
                    schema=_normalize(schema),
                )
                auto_schema.registry.register_on_missing(component)
        return dict(_normalize(parts.get(self.target.__name__, own)))


def _normalize(schema: Any) -> Any:
    """Return a schema in the form that client generators accept.

    A list of enum values gets a type, which drf-spectacular's hook for enums also requires.
    `items: false`, which closes a tuple, is left out: `maxItems` already limits the length.
    An array of anything gets `items: {}`.
    """
    if isinstance(schema, list):
        return [_normalize(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    normalized = {
        name: _normalize(part)
        for name, part in schema.items()
        if not (name == "items" and part is False)
    }
    if schema.get("type") == "array" and not schema.keys() & {"items", "prefixItems"}:
        normalized["items"] = {}
    return (
        {"type": "string", **normalized}
        if isinstance(schema.get("enum"), list)
        else normalized
    )


class ApiKeyExtension(OpenApiAuthenticationExtension):  # type: ignore[no-untyped-call]
    """Documents the header that carries the API key."""

    target_class = "brokerapi.endpoint.ApiKey"
    name = "apiKey"

    def get_security_definition(self, auto_schema: AutoSchema) -> dict[str, Any]:
        return {"type": "http", "scheme": "bearer", "description": "An API key: `catmq_…`"}


def operation(
    name: str,
    *,
    tag: str,
    request: Any = None,
    answer: Any = None,
    status: int = 200,
    query: type[msgspec.Struct] | None = None,
) -> Callable[[F], F]:
    """Describe a view's method: its operation id, its shapes; every error is a Problem.

    `request` is a struct or a serializer. `answer` too, or a page_of() or list_of() them.
    """
    success: dict[Any, Any] = {status: OpenApiResponse(description="Done")}
    if answer is not None:
        success = {(status, media_type): answer for media_type in MEDIA_TYPES}
    parameters = None
    if query is not None:
        (_,), parts = msgspec.json.schema_components([query])
        parameters = [
            OpenApiParameter(parameter, schema, OpenApiParameter.QUERY)
            for parameter, schema in parts[query.__name__]["properties"].items()
        ]
    decorator: Any = extend_schema(
        operation_id=name,
        tags=[tag],
        request=dict.fromkeys(MEDIA_TYPES, request) if request is not None else None,
        responses={
            **success,
            ("default", "application/problem+json"): OpenApiResponse(
                Problem, description="Error"
            ),
        },
        parameters=parameters,
    )
    return decorator  # type: ignore[no-any-return]


def page_of(
    plural: str, item: type[serializers.Serializer[Any]]
) -> serializers.Serializer[Any]:
    """Return the shape of a page of a list: {"topics": [...], "next": name or null}."""
    fields: dict[str, serializers.Field[Any, Any, Any, Any]] = {
        plural: item(many=True),
        "next": serializers.CharField(allow_null=True),
    }
    return inline_serializer(f"{plural.capitalize()}Page", fields)


def list_of(
    plural: str, item: type[serializers.Serializer[Any]]
) -> serializers.Serializer[Any]:
    """Return the shape of a whole list: {"moves": [...]}."""
    return inline_serializer(f"{plural.capitalize()}List", {plural: item(many=True)})
