"""A channel of kombu on CatMQ: declarations, sends, consumers, and acknowledgements."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator, Mapping
from queue import Empty
from typing import Any, cast

from amqp.exceptions import RecoverableConnectionError
from amqp.protocol import queue_declare_ok_t
from kombu.exceptions import ChannelError
from kombu.transport import virtual
from kombu.transport.base import to_rabbitmq_queue_arguments
from kombu.transport.virtual.base import NOT_EQUIVALENT_FMT, NotEquivalentError
from kombu.utils.uuid import uuid

from catmq_client.contrib.kombu import messages
from catmq_client.contrib.kombu.cluster import Cluster
from catmq_client.contrib.kombu.registry import Binding
from catmq_client.errors import OptionError
from catmq_client.sharing.messages import ShareMessage

log: logging.Logger = logging.getLogger("catmq.kombu")

EXCHANGE_TYPES = ("direct", "topic", "fanout")
# Arguments of queues that have an effect. Others are ignored, which is logged once.
KNOWN_ARGUMENTS = frozenset({"x-expires", "x-max-priority", "x-message-ttl"})
# Transient queues that get messages only from an exchange, never by their name.
BOUND_ONLY = re.compile(r"\.pidbox$|^celeryev\.")
# Errors that code raises if a message does not have the form that it expects.
FORM_ERRORS = (
    ArithmeticError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)
_logged_arguments: set[str] = set()


class QoS(virtual.QoS):
    """The delivered messages of a channel that are not acknowledged yet."""

    def ack(self, delivery_tag: str) -> None:
        super().ack(delivery_tag)
        self.channel.accept(delivery_tag)

    def reject(self, delivery_tag: str, requeue: bool = False) -> None:
        # Not super().reject(), which would store a copy of the message.
        super().ack(delivery_tag)
        self.channel.refuse(delivery_tag, requeue=requeue)

    def restore_unacked_once(self, stderr: Any = None) -> None:
        if self.channel.is_own_process:
            super().restore_unacked_once(stderr)


class Channel(virtual.Channel):
    """A channel. Messages of durable queues are leased from brokers, those of transient queues
    are in memory.
    """

    QoS = QoS
    supports_fanout = True
    body_encoding = None
    from_transport_options: tuple[()] = ()

    def __init__(self, connection: Any, **kwargs: Any) -> None:
        super().__init__(connection, **kwargs)
        # By delivery tag; transient queues have no leases.
        self._leases: dict[str, ShareMessage] = {}
        # Queues that are consumed without acknowledgements.
        self._no_ack: set[str] = set()

    @property
    def cluster(self) -> Cluster:
        return cast(Cluster, self._open_connection.cluster)

    @property
    def _open_connection(self) -> Any:
        """The connection. Raises RecoverableConnectionError if the channel is closed."""
        if self.connection is None:
            # kombu repeats the operation on a new channel after this error.
            raise RecoverableConnectionError("this channel was closed: open another one")
        return self.connection

    @property
    def is_own_process(self) -> bool:
        """False in a process that was forked from the process that opened the channel."""
        return self.connection is not None and self.connection.is_own_process

    def exchange_declare(
        self,
        exchange: str | None = None,
        type: str = "direct",
        passive: bool = False,
        **_: Any,
    ) -> None:
        type = type or "direct"
        exchange = exchange or f"amq.{type}"
        if type not in EXCHANGE_TYPES:
            raise OptionError(
                f"exchange {exchange!r} has the type {type!r}: write one of "
                f"{', '.join(EXCHANGE_TYPES)}"
            )
        table = self.cluster.registry.table()
        declared_type = table.exchanges.get(exchange)
        # Another process may have declared it since the table was read.
        if passive and declared_type is None:
            table = self.cluster.registry.table(max_age_s=0.0)
            declared_type = table.exchanges.get(exchange)
            if declared_type is None:
                raise self._not_found("exchange", exchange)
        if passive or declared_type == type:
            return
        if declared_type is not None:
            raise NotEquivalentError(NOT_EQUIVALENT_FMT.format(exchange, self._vhost))
        self.cluster.declare_exchange(exchange, type)

    def exchange_delete(
        self, exchange: str, if_unused: bool = False, nowait: bool = False
    ) -> None:
        if if_unused and any(True for _ in self._bound_to(exchange)):
            return
        self.cluster.registry.record(
            {"op": "delete_exchange", "exchange": exchange},
            is_new=lambda table, _: exchange in table.exchanges,
        )

    def prepare_queue_arguments(self, arguments: Any, **kwargs: Any) -> dict[str, Any]:
        # The method of the base class drops expires and max_priority.
        return cast(dict[str, Any], to_rabbitmq_queue_arguments(arguments, **kwargs))

    def queue_declare(
        self,
        queue: str | None = None,
        passive: bool = False,
        *,
        exclusive: bool = False,
        auto_delete: bool = False,
        arguments: Mapping[str, Any] | None = None,
        **_: Any,
    ) -> queue_declare_ok_t:
        queue = queue or f"amq.gen-{uuid()}"
        if passive:
            if not self._has_queue(queue):
                raise self._not_found("queue", queue)
            return queue_declare_ok_t(queue, self._size(queue), 0)
        queue_arguments = arguments or {}
        for name in sorted(queue_arguments.keys() - KNOWN_ARGUMENTS - _logged_arguments):
            _logged_arguments.add(name)
            log.warning(
                "queue %s: the argument %s means nothing here and is ignored", queue, name
            )
        expires_ms = queue_arguments.get("x-expires")
        if not (exclusive or auto_delete or expires_ms is not None):
            self.cluster.ensure_queue(queue)
            return queue_declare_ok_t(queue, 0, 0)
        transients = self.cluster.transients
        is_new = not transients.has(queue)
        transients.declare(
            queue, expires_s=None if expires_ms is None else expires_ms / 1000
        )
        # A queue that is addressed by its name needs a log of the default exchange.
        if is_new and not BOUND_ONLY.search(queue):
            transients.bind(Binding("", queue, queue), "direct")
        return queue_declare_ok_t(queue, 0, 0)

    def queue_delete(
        self, queue: str, if_unused: bool = False, if_empty: bool = False, **_: Any
    ) -> int:
        if if_empty and self._size(queue):
            return 0
        if self.cluster.transients.has(queue):
            return self.cluster.transients.delete(queue)
        count = self._purge(queue) if self._has_queue(queue) else 0
        self.cluster.registry.record(
            {"op": "delete_queue", "queue": queue},
            is_new=lambda table, _: queue in table.queues,
        )
        return count

    def queue_bind(
        self, queue: str, exchange: str | None = None, routing_key: str = "", **_: Any
    ) -> None:
        exchange = exchange or "amq.direct"
        kind = self.cluster.registry.table().exchanges.get(exchange)
        if kind is None:
            kind = self.cluster.registry.table(max_age_s=0.0).exchanges.get(exchange)
        if kind is None:
            raise self._not_found("exchange", exchange)
        binding = Binding(exchange, routing_key or "", queue)
        if self.cluster.transients.has(queue):
            self.cluster.transients.bind(binding, kind)
        else:
            self.cluster.registry.record(
                {"op": "bind", **binding._asdict()},
                is_new=lambda table, _: binding not in table.bindings,
            )

    def queue_unbind(
        self, queue: str, exchange: str | None = None, routing_key: str = "", **_: Any
    ) -> None:
        binding = Binding(exchange or "amq.direct", routing_key or "", queue)
        if self.cluster.transients.has(queue):
            self.cluster.transients.unbind(binding)
        else:
            self.cluster.registry.record(
                {"op": "unbind", **binding._asdict()},
                is_new=lambda table, _: binding in table.bindings,
            )

    def list_bindings(self) -> Iterator[tuple[str, str, str]]:
        """Return (queue, exchange, routing key) for each binding of a durable queue."""
        bindings = self.cluster.registry.table(max_age_s=0.0).bindings
        return ((binding.queue, binding.exchange, binding.key) for binding in bindings)

    def get_exchanges(self) -> list[str]:
        return [*self.cluster.registry.table().exchanges]

    def get_table(self, exchange: str) -> list[tuple[str, str, str]]:
        return [(binding.key, "", binding.queue) for binding in self._bound_to(exchange)]

    def _bound_to(self, exchange: str) -> Iterator[Binding]:
        bindings = self.cluster.registry.table(max_age_s=0.0).bindings
        return (binding for binding in bindings if binding.exchange == exchange)

    def _has_queue(self, queue: str, **_: Any) -> bool:
        if self.cluster.transients.has(queue):
            return True
        return queue in self.cluster.registry.table(max_age_s=0.0).queues

    def _size(self, queue: str) -> int:
        transients = self.cluster.transients
        return transients.size(queue) if transients.has(queue) else self.cluster.size(queue)

    def _purge(self, queue: str) -> int:
        transients = self.cluster.transients
        return (
            transients.purge(queue)
            if transients.has(queue)
            else self._open_connection.purge(queue)
        )

    def after_reply_message_received(self, queue: str) -> None:
        self.cluster.transients.delete(queue)

    def basic_publish(
        self, message: messages.Payload, exchange: str, routing_key: str, **_: Any
    ) -> None:
        self._inplace_augment_message(message, exchange, routing_key)
        self.cluster.publish(message, exchange or "", routing_key or "")

    def encode_body(self, body: Any, encoding: str | None = None) -> tuple[Any, str | None]:
        # Text stays text, so that people can read and search it. Other bytes become Base64.
        is_text = isinstance(body, str) and encoding in (None, "utf-8")
        if is_text:
            return body, None
        return cast(tuple[Any, str | None], super().encode_body(body, encoding or "base64"))

    def _put(self, queue: str, message: messages.Payload, **_: Any) -> None:
        self.cluster.put(queue, message)

    def basic_consume(
        self,
        queue: str,
        no_ack: bool,
        callback: Callable[..., Any],
        consumer_tag: str,
        **kwargs: Any,
    ) -> None:

        def deliver(message: Any) -> Any:
            try:
                return callback(message)
            except FORM_ERRORS as error:
                # An error in the message handler of Celery's worker ends the worker, and the
                # next worker would get the same message and end, too. Errors of other
                # applications are theirs to handle.
                consumer = getattr(callback, "__self__", None)
                module = getattr(getattr(consumer, "on_message", None), "__module__", "")
                if not str(module).startswith("celery.worker."):
                    raise
                log.exception(
                    "Celery could not handle message %s of queue %s",
                    message.delivery_tag,
                    queue,
                )
                if not message.acknowledged:
                    # Without the lease, reject() only removes the message from the QoS.
                    lease = self._leases.pop(message.delivery_tag, None)
                    message.reject()
                    if lease is not None:
                        self._open_connection.reject_invalid(lease, queue, error)
                return None

        super().basic_consume(queue, no_ack, deliver, consumer_tag, **kwargs)
        if no_ack:
            self._no_ack.add(queue)
        self.cluster.transients.count_consumer(queue, 1)
        self._open_connection.on_consumers_changed()

    def basic_cancel(self, consumer_tag: str) -> None:
        queue = self._tag_to_queue.get(consumer_tag)
        super().basic_cancel(consumer_tag)
        if queue is None or not self.is_own_process:
            return
        self._no_ack.discard(queue)
        self.cluster.transients.count_consumer(queue, -1)
        self._open_connection.on_consumers_changed()

    def prefetch_room(self) -> int | None:
        """Return how many messages may be delivered now; None if there is no limit."""
        if not self.qos.can_consume():
            return 0
        return cast(int | None, self.qos.can_consume_max_estimate())

    def consumed_queues(self) -> list[str]:
        return list(self._active_queues)

    def track_lease(self, queue: str, tag: str, lease: ShareMessage) -> None:
        """Keep the lease of a delivered message until its acknowledgement. Accept it at once
        if the consumer does not acknowledge.
        """
        if queue in self._no_ack:
            lease.accept()
        else:
            self._leases[tag] = lease

    def basic_get(self, queue: str, no_ack: bool = False, **_: Any) -> Any:
        try:
            payload, lease = self._open_connection.get(queue)
        except Empty:
            return None
        message = self.Message(payload, channel=self)
        if not no_ack:
            self.qos.append(message, message.delivery_tag)
            if lease is not None:
                self._leases[message.delivery_tag] = lease
        elif lease is not None:
            lease.accept()
        return message

    def basic_ack(self, delivery_tag: str, multiple: bool = False) -> None:
        if not multiple:
            self.qos.ack(delivery_tag)
            return
        # A copy, in the order of delivery: ack() changes the dict.
        for tag in list(self.qos._delivered):
            if tag not in self.qos._dirty:
                self.qos.ack(tag)
            if tag == delivery_tag:
                break

    def basic_recover(self, requeue: bool = False) -> Any:
        if not requeue:
            raise NotImplementedError(
                "recover(requeue=False) does not exist here: write requeue=True"
            )
        return self.qos.restore_unacked()

    def accept(self, tag: str) -> None:
        """Accept a message. May be called in any thread."""
        lease = self._leases.pop(tag, None)
        if lease is not None and self.is_own_process and not lease.accept():
            log.warning(
                "%r was acknowledged after its lease had ended: it may be delivered again",
                lease,
            )

    def refuse(self, tag: str, *, requeue: bool) -> None:
        """Release a message if `requeue`. Otherwise drop it, or make it a dead letter."""
        lease = self._leases.pop(tag, None)
        if lease is None or not self.is_own_process:
            return
        if requeue:
            lease.release()
            self._open_connection.flush()
        elif self.cluster.options.dead_on_reject:
            lease.reject("rejected")
        else:
            lease.accept()

    def _restore(self, message: Any) -> None:
        # The base class would store a copy. Ending the lease keeps the message's order, id and
        # count of deliveries.
        lease = self._leases.pop(message.delivery_tag, None)
        if lease is not None and self.is_own_process:
            lease.release()

    @property
    def _vhost(self) -> str:
        return self.cluster.names.vhost

    def _not_found(self, kind: str, name: str) -> ChannelError:
        return ChannelError(
            f"NOT_FOUND - no {kind} {name!r} in vhost {self._vhost!r}",
            (50, 10),
            f"Channel.{kind}_declare",
            "404",
        )
