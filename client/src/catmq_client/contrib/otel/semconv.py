"""Names of OpenTelemetry's semantic conventions for messaging, pinned to one version.

https://opentelemetry.io/docs/specs/semconv/messaging/: they are in development, so a later
version may rename them. This module is the only place to change then.
"""

from __future__ import annotations

VERSION = "1.44.0"
SCHEMA_URL = f"https://opentelemetry.io/schemas/{VERSION}"

SYSTEM = "messaging.system"
DESTINATION_NAME = "messaging.destination.name"
PARTITION_ID = "messaging.destination.partition.id"
GROUP_NAME = "messaging.consumer.group.name"
OPERATION_NAME = "messaging.operation.name"
OPERATION_TYPE = "messaging.operation.type"
BATCH_COUNT = "messaging.batch.message_count"
MESSAGE_ID = "messaging.message.id"
BODY_SIZE = "messaging.message.body.size"
ERROR_TYPE = "error.type"
# Names of our own, as the conventions demand for what a single system has.
OFFSET = "catmq.message.offset"
ATTEMPT = "catmq.message.attempt"

SEND, PROCESS = "send", "process"

OPERATION_DURATION = "messaging.client.operation.duration"
SENT_MESSAGES = "messaging.client.sent.messages"
CONSUMED_MESSAGES = "messaging.client.consumed.messages"
PROCESS_DURATION = "messaging.process.duration"
INVALID_CONTEXTS = "catmq.trace_context.invalid"
# Seconds. The conventions give these boundaries to both histograms.
DURATION_BOUNDARIES = (
    *(0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25),
    *(0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0),
)
