"""The place where a tracing library follows messages through the client.

catmq_client.contrib.otel installs an Instrumentation. Without one, a send costs one look at a
variable, and a handler is called directly.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeVar

if TYPE_CHECKING:
    from catmq_client.errors import CatmqError
    from catmq_client.sending.receipts import Receipt, SendFuture

F = TypeVar("F", bound=Callable[..., Any])


class SendObserver(Protocol):
    """Follows a send, in a `with` block that has the messages appended to the buffer.

    It ends with an exception of the block, with succeed(), or when the future of follow()
    ends, whichever comes first.
    """

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...

    def succeed(self, results: Sequence[Receipt | CatmqError]) -> None:
        """Note the receipt or the error of each message."""

    def follow(self, future: SendFuture) -> None:
        """End with the future of a single message, whose receipt the caller may not await."""


class Instrumentation(Protocol):
    """What a tracing library does with messages. Any thread may call it."""

    def observe_send(self, topic: str, messages: Sequence[dict[str, Any]]) -> SendObserver:
        """Begin to follow messages, as fields of a send request, and add their headers."""

    def inject(self, headers: Mapping[str, str] | None) -> Mapping[str, str] | None:
        """Return the headers of a message that is stored for a later send, with the caller's
        trace.
        """

    def wrap_handler(self, handler: F, *, group: str) -> F:
        """Return a handler that follows its calls. A coroutine function stays one."""


class _NoObserver:
    """Follows nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        pass

    def succeed(self, results: Sequence[Receipt | CatmqError]) -> None:
        pass

    def follow(self, future: SendFuture) -> None:
        pass


_NO_OBSERVER = _NoObserver()
_installed: Instrumentation | None = None


def install(instrumentation: Instrumentation | None) -> None:
    """Use an instrumentation for all producers and consumers of this process, or none.

    Handlers that run() has begun with are not changed.
    """
    global _installed
    _installed = instrumentation


def is_installed() -> bool:
    return _installed is not None


def observe_send(topic: str, messages: Sequence[dict[str, Any]]) -> SendObserver:
    if _installed is None:
        return _NO_OBSERVER
    return _installed.observe_send(topic, messages)


def inject(headers: Mapping[str, str] | None) -> Mapping[str, str] | None:
    return headers if _installed is None else _installed.inject(headers)


def wrap_handler(handler: F, *, group: str) -> F:
    return handler if _installed is None else _installed.wrap_handler(handler, group=group)
