"""The shape of a read plan (see serializers)."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers

from brokerapi.shapes.fields import Number, Text


class PlannedQueueAnswer(serializers.Serializer[Any]):
    """A queue: the offsets low … head - 1 of its table may be read, without those in the gaps."""

    queue = Number(help_text="the global id")
    number = Number(help_text="its place in the topic")
    node = Text()
    table = Text()
    low = Number()
    head = Number(help_text="durable: what is below it stays")
    gaps = serializers.ListField(
        child=serializers.ListField(child=Number()),
        help_text="offsets lost with a node: from, to (excluded)",
    )


class PlannedNodeAnswer(serializers.Serializer[Any]):
    """A node; user name and password are empty if it has no reader account, or the key no admin on all."""

    name = Text()
    engine = Text()
    host = Text()
    port = Number()
    database = Text(help_text="the schema on mysql, the file's path on sqlite")
    identity = Text(help_text="tells this node's data from any other's")
    username = Text()
    password = Text()


class ReadPlanAnswer(serializers.Serializer[Any]):
    """Queues and nodes that hold a topic's messages."""

    topic = Text()
    queues = PlannedQueueAnswer(many=True)
    nodes = PlannedNodeAnswer(many=True)
