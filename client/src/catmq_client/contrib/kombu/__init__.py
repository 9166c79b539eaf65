"""A transport of kombu, so that Celery runs on CatMQ: `catmq://:APIKEY@broker:8000/vhost`.

    import catmq_client.contrib.kombu  # registers the schemes catmq and catmqs (TLS)

    app = Celery("shop", broker="catmq://:APIKEY@broker-1:8000;catmq://:APIKEY@broker-2:8000")

A durable queue is a topic that a share group reads: a message is leased to one worker, and
the lease is renewed while the worker lives. Transient queues (auto_delete, exclusive,
expires) live in the memory of their process. They get their messages from a log, a topic
that exists for each exchange to which they are bound. Brokers delay a task with an eta or
countdown. Needs kombu 5.4 and Celery 5.4.
"""

from __future__ import annotations

from kombu.transport import TRANSPORT_ALIASES

from catmq_client.contrib.kombu.transport import SecureTransport, Transport

TRANSPORT_ALIASES.setdefault("catmq", "catmq_client.contrib.kombu.transport:Transport")
TRANSPORT_ALIASES.setdefault(
    "catmqs", "catmq_client.contrib.kombu.transport:SecureTransport"
)

__all__ = ["SecureTransport", "Transport"]
