"""The client's types of answers, written from the OpenAPI schema.

`manage.py settings_reference --write` puts them into catmq_client.admin.shapes. Each is a
TypedDict with the fields and descriptions of a component. Every field of an answer is
present in it, even where the schema does not require it: the schema takes the settings from
requests, in which they are optional.
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator, Mapping
from typing import Any

Json = dict[str, Any]

# Component of the schema → name in the client.
TYPES = {
    "QueueAnswer": "QueueRow",
    "UnreadAnswer": "Unread",
    "ChangedQueue": "ChangedQueue",
    "LayoutChangeAnswer": "LayoutChange",
    "TagMatchesAnswer": "TagMatches",
    "QueueState": "QueueState",
    "TopicSummary": "TopicRow",
    "LayoutAnswer": "Layout",
    "TopicAnswer": "Topic",
    "DelayedAnswer": "DelayedPage",
    "BrokerAnswer": "Broker",
    "NodeAnswer": "Node",
    "MessagesAnswer": "FoundMessages",
    "KeyAnswer": "Key",
    "NewKeyAnswer": "NewKey",
    "SendTokenAnswer": "SendToken",
    "NewSendTokenAnswer": "NewSendToken",
    "SubscriptionAnswer": "Subscription",
    "SlowHandlerAnswer": "SlowHandler",
    "ProcessAnswer": "ProcessReport",
    "MemberAnswer": "Member",
    "GroupAnswer": "Group",
    "LagAnswer": "QueueLag",
    "ListedRunAnswer": "LeasedRun",
    "RunsAnswer": "Leases",
    "ProgressAnswer": "Progress",
    "OffsetsAnswer": "GroupLag",
    "MoveAnswer": "Move",
    "OffsetsMoved": "Moves",
    "PlannedMove": "PlannedMove",
    "PastMove": "PastMove",
    "RebalanceMoves": "Plan",
    "RebalanceAnswer": "Rebalance",
    "PlannedQueueAnswer": "PlannedQueue",
    "PlannedNodeAnswer": "PlannedNode",
    "ReadPlanAnswer": "ReadPlan",
    "TraceAnswer": "Trace",
    "ProducerAnswer": "TopicProducer",
    "KeyIndexAnswer": "KeyIndex",
    "QueueIndexAnswer": "QueueIndex",
    "Definitions": "Definitions",
    "DifferenceAnswer": "Difference",
    "StepAnswer": "ImportStep",
    "ImportAnswer": "Imported",
    "DeadAnswer": "DeadLetter",
    "DeadCountAnswer": "DeadLetterCount",
    "DeadSummaryAnswer": "DeadLetterSummary",
    "RedriveAnswer": "Redrive",
    "FailedMessageAnswer": "RetryMessage",
    "FailedCountAnswer": "RetryCount",
    "FailedAnswer": "Retries",
    "DoctorFindingAnswer": "DoctorFinding",
    "DoctorReportAnswer": "DoctorReport",
}
# Fields that brokers of earlier releases do not send, so programs must not rely on them.
LATER_FIELDS = {
    "MemberAnswer": ("process", "process_age_ms"),
    "GroupAnswer": ("lease_ms", "run_messages", "max_deliveries"),
    "MessagesAnswer": ("missing", "rows"),
    "LagAnswer": ("in_flight", "redelivered", "oldest_lease_ms"),
    "OffsetsAnswer": ("progress",),
}
SCALARS = {
    "integer": "int",
    "number": "float",
    "string": "str",
    "boolean": "bool",
    "null": "None",
}
WIDTH = 92
HEAD = '''"""Shapes of the management API's answers.

Written by `manage.py settings_reference --write` from the OpenAPI schema. Newer brokers add
fields; brokers of an older release omit some.
"""

# ruff: noqa: UP013 - one statement for each type keeps the written file short

from __future__ import annotations

from typing import Any, Literal, NotRequired, TypedDict

Start = Literal["earliest", "latest"]
'''


def module(components: Mapping[str, Json]) -> str:
    """Return the text of catmq_client.admin.shapes. `components`: the schemas by name."""
    ordered: list[str] = []
    for name in TYPES:
        _place(name, components, ordered)
    return HEAD + "".join(_typed_dict(name, components) for name in ordered)


def _place(name: str, components: Mapping[str, Json], ordered: list[str]) -> None:
    """Append a component after those that it names: the functional form needs them defined."""
    if name in ordered:
        return
    for reference in _references(components[name]):
        if reference in TYPES and reference != name:
            _place(reference, components, ordered)
    ordered.append(name)


def _references(schema: object) -> Iterator[str]:
    if isinstance(schema, dict):
        if "$ref" in schema:
            yield schema["$ref"].rpartition("/")[2]
        for value in schema.values():
            yield from _references(value)
    elif isinstance(schema, list):
        for value in schema:
            yield from _references(value)


def _typed_dict(component: str, components: Mapping[str, Json]) -> str:
    name, schema = TYPES[component], components[component]
    lines = [
        "",
        *_comment(schema.get("description", ""), indent=""),
        f"{name} = TypedDict(",
    ]
    lines += [f'    "{name}",', "    {"]
    for field, form in schema["properties"].items():
        expression = _expression(form, components)
        if field in LATER_FIELDS.get(component, ()):
            expression = f"NotRequired[{expression}]"
        description = form.get("description", "")
        if description != field.replace("_", " "):
            lines += _comment(description, indent=" " * 8)
        lines.append(f'        "{field}": {expression},')
    return "\n".join([*lines, "    },", ")", ""])


def _comment(text: str, *, indent: str) -> list[str]:
    return textwrap.wrap(
        text,
        WIDTH,
        initial_indent=f"{indent}# ",
        subsequent_indent=f"{indent}# ",
        break_long_words=False,
        break_on_hyphens=False,
    )


def _expression(form: Json, components: Mapping[str, Json]) -> str:
    """Return the type of a field as Python writes it."""
    if "$ref" in form:
        component = form["$ref"].rpartition("/")[2]
        if component in TYPES:
            return TYPES[component]
        # Others are enums, which are written out, or objects that the client does not look into.
        is_enum = "enum" in components[component]
        return (
            _expression(components[component], components) if is_enum else "dict[str, Any]"
        )
    for combination in ("oneOf", "anyOf", "allOf"):
        if combination in form:
            parts = [_expression(part, components) for part in form[combination]]
            return " | ".join(dict.fromkeys(parts))
    kinds = form.get("type", "any")
    kinds = [kinds] if isinstance(kinds, str) else kinds
    return " | ".join(_kind(kind, form, components) for kind in kinds)


def _kind(kind: str, form: Json, components: Mapping[str, Json]) -> str:
    if kind == "string" and "enum" in form:
        values = [json.dumps(value) for value in form["enum"]]
        line = ", ".join(values)
        if len(line) > WIDTH - 40:  # as the formatter breaks it
            line = "".join(f"\n{' ' * 12}{value}," for value in values) + f"\n{' ' * 8}"
        return f"Literal[{line}]"
    if kind == "array":
        return f"list[{_expression(form.get('items') or {}, components)}]"
    if kind == "object":
        value = form.get("additionalProperties")
        kind = _expression(value, components) if isinstance(value, dict) else "Any"
        return f"dict[str, {kind}]"
    return SCALARS.get(kind, "Any")
