"""Checks of functions that applications pass in: handlers of messages, and callbacks.

Most are called in threads, without an event loop. There a function that returns a coroutine
or a generator would do nothing, and its message would count as handled. So such functions
are refused when they are passed in. Their results are refused, too, because a plain
function such as a lambda may return a coroutine. Where coroutines are awaited, plain
functions are refused, because they would block the loop.
"""

from __future__ import annotations

import functools
import inspect
import itertools
from concurrent.futures import Future
from types import AsyncGeneratorType, CoroutineType, FunctionType, GeneratorType
from typing import Any

from catmq_client.errors import OptionError

# Flags in the code of functions whose call runs none of their body.
_LAZY_FLAGS = inspect.CO_COROUTINE | inspect.CO_GENERATOR | inspect.CO_ASYNC_GENERATOR
# Results that do their work only when they are awaited or iterated.
_LAZY_RESULTS = (
    CoroutineType,
    GeneratorType,
    AsyncGeneratorType,
    map,
    filter,
    itertools.starmap,
)


def check_callable(name: str, function: Any) -> None:
    """Raise OptionError unless calling `function` does its work.

    `name` is that of the argument.
    """
    underlying = getattr(function, "__func__", function)
    # Some callers check for each message. This test costs a twentieth of the full check and
    # accepts nearly all functions.
    if type(underlying) is FunctionType and not underlying.__code__.co_flags & _LAZY_FLAGS:
        return
    remedy = _find_remedy(function)
    if remedy is not None:
        raise OptionError(f"{name}={function!r}: {remedy}")


def is_coroutine_function(function: Any) -> bool:
    """Return True for `async def`, also as a method, in a partial, or as `__call__`."""
    inner = _unwrap(function)
    if inspect.isclass(inner) or not callable(inner):
        return False
    # Python looks up __call__ on the type, not on the instance.
    return any(map(inspect.iscoroutinefunction, (inner, _unwrap(type(inner).__call__))))


def check_coroutine_function(name: str, function: Any) -> None:
    """Raise OptionError unless `function` is a coroutine function."""
    if is_coroutine_function(function):
        return
    remedy = _find_remedy(function, kind="a coroutine function") or (
        "a plain function would block the event loop: write `async def`, with await "
        "asyncio.to_thread(…) around what blocks, or give it to run() of a Consumer or "
        "ShareConsumer, which call it in threads"
    )
    raise OptionError(f"{name}={function!r}: {remedy}")


def name_of(function: Any) -> str:
    """Return the name of a function for logs."""
    inner = _unwrap(function)
    return str(getattr(inner, "__qualname__", None) or type(inner).__qualname__)


def check_result(name: str, result: object) -> None:
    """Raise OptionError if a function returned work that is not done yet.

    `name` is that of the function.
    """
    kind = type(result)
    is_lazy = isinstance(result, _LAZY_RESULTS) or hasattr(kind, "__await__")
    # A SendFuture can be awaited, but its message is sent without that.
    if not is_lazy or getattr(kind, "ends_by_itself", False):
        return
    if isinstance(result, CoroutineType | GeneratorType):
        result.close()  # closed, so that Python does not warn that it was never awaited
    raise OptionError(
        f"{name} returned an object of type {kind.__name__}, which is neither awaited nor "
        "iterated: do the work before returning, for example with asyncio.run(…)"
    )


def check_handled(result: object) -> None:
    """Raise OptionError if a handler returned work that has not been done, or may not be
    done yet.

    A callback may start work elsewhere and leave it. Of a handler, the message would count
    as handled while another thread or event loop is at work, and a failure there would be
    lost.
    """
    if isinstance(result, Future):
        raise OptionError(
            f"the handler returned a {type(result).__name__}, whose work may not be done "
            "yet: wait for it before returning, with .result()"
        )
    check_result("the handler", result)


def _find_remedy(function: Any, *, kind: str = "a function") -> str | None:
    """Return what to pass in instead of `function`, or None if it can be called.

    `kind` names the functions that the caller accepts.
    """
    inner = _unwrap(function)
    if not callable(inner):
        return f"give {kind}, and not the result of calling it"
    if inspect.isclass(inner):
        return (
            f"a class would only be instantiated: give {kind}, or an instance whose "
            "__call__ is such a function"
        )
    # Python looks up __call__ on the type, not on the instance.
    for candidate in (inner, _unwrap(type(inner).__call__)):
        if inspect.iscoroutinefunction(candidate):
            return (
                "coroutines are not awaited: give a plain function, such as "
                "lambda message: asyncio.run(handle(message))"
            )
        if inspect.isgeneratorfunction(candidate) or inspect.isasyncgenfunction(candidate):
            return f"generators are not iterated: give {kind}, without yield"
    return None


def _unwrap(function: Any) -> Any:
    """Return the function under partials and bound methods.

    Decorated functions (`__wrapped__`) are not unwrapped: their wrapper may run the
    coroutine, as async_to_sync does.
    """
    while True:
        if isinstance(function, functools.partial):
            function = function.func
        elif inspect.ismethod(function):
            function = function.__func__
        else:
            return function
