"""The OpenAPI schema: how endpoints describe themselves, and how msgspec structs become
components.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, TypeVar

import msgspec
from drf_spectacular.extensions import (
    OpenApiAuthenticationExtension,
    OpenApiSerializerExtension,
    OpenApiSerializerFieldExtension,
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
from brokerapi.shapes.fields import views

# Component of each view that is an answer: a struct of the layers below, by its class name.
COMPONENTS = {
    "Acquired": "AcquiredQueue",
    "BrokerView": "BrokerAnswer",
    "Dead": "DeadMessage",
    "DeadCount": "DeadCountAnswer",
    "DeadLetterInfo": "DeadAnswer",
    "DeadPage": "DeadPageAnswer",
    "Difference": "DifferenceAnswer",
    "Joined": "RegisterAnswer",
    "KeyIndex": "KeyIndexAnswer",
    "LeasedRun": "ListedRunAnswer",
    "Lost": "LostAnswer",
    "MemberView": "MemberAnswer",
    "Move": "PlannedMove",
    "MoveView": "PastMove",
    "Origin": "OriginAnswer",
    "PastMove": "PastMoveAnswer",
    "PendingRetries": "FailedAnswer",
    "PendingRetry": "FailedMessageAnswer",
    "PlannedNode": "PlannedNodeAnswer",
    "PlannedQueue": "PlannedQueueAnswer",
    "ProcessStatus": "ProcessAnswer",
    "ProducerView": "ProducerAnswer",
    "ReadPlan": "ReadPlanAnswer",
    "QueueIndex": "QueueIndexAnswer",
    "RebalanceView": "RebalanceAnswer",
    "Refused": "RefusedMessage",
    "Report": "FailuresAnswer",
    "Retried": "RetriedMessage",
    "RetryCount": "FailedCountAnswer",
    "SendTokenView": "SendTokenAnswer",
    "SlowHandler": "SlowHandlerAnswer",
    "Summary": "DeadSummaryAnswer",
    "TagMatches": "TagMatchesAnswer",
    "TraceView": "TraceAnswer",
    "Unread": "UnreadAnswer",
}
F = TypeVar("F", bound=Callable[..., Any])
MEDIA_TYPES = ["application/json", "application/msgpack"]
REFERENCE = "#/components/schemas/{name}"


class StructExtension(OpenApiSerializerExtension):  # type: ignore[no-untyped-call]
    """Documents a msgspec struct; the structs it contains become components of their own."""

    target_class = "msgspec.Struct"
    match_subclasses = True

    def get_name(self, auto_schema: AutoSchema, direction: str) -> str:
        return component_name(self.target.__name__)

    def map_serializer(self, auto_schema: AutoSchema, direction: str) -> dict[str, Any]:
        (own,), parts = msgspec.json.schema_components(
            [self.target], ref_template=REFERENCE
        )
        for name, schema in parts.items():
            if name in COMPONENTS:
                # A default is only for the constructor: the answer has all fields.
                schema["required"] = list(schema["properties"])
                for field_schema in schema["properties"].values():
                    field_schema.pop("default", None)
                schema["title"] = COMPONENTS[name]
            if name != self.target.__name__:
                component: ResolvedComponent = ResolvedComponent(  # type: ignore[no-untyped-call]
                    name=component_name(name),
                    type=ResolvedComponent.SCHEMA,
                    object=name,
                    schema=_normalize(schema),
                )
                auto_schema.registry.register_on_missing(component)
        return dict(_normalize(parts.get(self.target.__name__, own)))


class ViewExtension(OpenApiSerializerFieldExtension):  # type: ignore[no-untyped-call]
    """Documents a view within the answer of a serializer."""

    target_class = "brokerapi.shapes.fields.View"

    def map_serializer_field(
        self, auto_schema: AutoSchema, direction: Literal["request", "response"]
    ) -> dict[str, Any]:
        component = auto_schema.resolve_serializer(self.target.struct, direction)
        return dict(component.ref)


def component_name(struct_name: str) -> str:
    return COMPONENTS.get(struct_name, struct_name)


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
    if "$ref" in schema:
        normalized["$ref"] = REFERENCE.format(
            name=component_name(schema["$ref"].rpartition("/")[2])
        )
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


Item = type[msgspec.Struct] | type[serializers.Serializer[Any]]


def page_of(plural: str, item: Item) -> serializers.Serializer[Any]:
    """Return the shape of a page of a list: {"topics": [...], "next": name or null}."""
    following = serializers.CharField(allow_null=True)
    fields = {plural: _items(item), "next": following}
    return inline_serializer(f"{plural.capitalize()}Page", fields)


def list_of(plural: str, item: Item) -> serializers.Serializer[Any]:
    """Return the shape of a whole list: {"moves": [...]}."""
    return inline_serializer(f"{plural.capitalize()}List", {plural: _items(item)})


def _items(item: Item) -> Any:
    return views(item) if issubclass(item, msgspec.Struct) else item(many=True)
