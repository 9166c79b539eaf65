"""Checks of functions that applications hand over: handlers of messages, and callbacks.

The client calls them in threads, without an event loop. A function that only makes a
coroutine or a generator would do nothing, and its message would count as handled. So such
functions are refused when they are handed over, and their results when a plain function,
such as a lambda, returns them.
"""

from __future__ import annotations

import functools
import inspect
import itertools
from concurrent.futures import Future
from types import AsyncGeneratorType, CoroutineType, FunctionType, GeneratorType
from typing import Any

from catmq_client.errors import OptionError

# Of the code of a function whose call does none of its work.
_LAZY_CODE = inspect.CO_COROUTINE | inspect.CO_GENERATOR | inspect.CO_ASYNC_GENERATOR
# These call functions only when somebody iterates over them.
_LAZY_RESULTS = (
    CoroutineType,
    GeneratorType,
    AsyncGeneratorType,
    map,
    filter,
    itertools.starmap,
)


def check_callable(name: str, function: Any) -> None:
    """Raise OptionError unless calling `function` does its work; `name` is that of the
    argument.
    """
    plain = getattr(function, "__func__", function)
    # Some are checked for each message, and nearly all are plain: that costs a twentieth.
    if type(plain) is FunctionType and not plain.__code__.co_flags & _LAZY_CODE:
        return
    remedy = _find_fault(function)
    if remedy is not None:
        raise OptionError(f"{name}={function!r}: {remedy}")


def check_result(name: str, result: object) -> None:
    """Raise OptionError if a function called `name` returned work that has not been done
    yet.
    """
    if not isinstance(result, _LAZY_RESULTS) and not hasattr(type(result), "__await__"):
        return
    if isinstance(result, CoroutineType | GeneratorType):
        result.close()  # without a warning that it was never awaited
    raise OptionError(
        f"{name} returned an object of type {type(result).__name__}, which is neither awaited nor "
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
            "yet: wait for "
            "it before returning, with .result()"
        )
    check_result("the handler", result)


def _find_fault(function: Any) -> str | None:
    """Return what to give instead of `function`; None if it can be called."""
    inner = _unwrap(function)
    if not callable(inner):
        return "give a function"
    if inspect.isclass(inner):
        return (
            "a class would only be instantiated: give a function, or an instance that "
            "can be called"
        )
    # Python calls what the type says, not an attribute of the instance.
    for candidate in (inner, _unwrap(type(inner).__call__)):
        if inspect.iscoroutinefunction(candidate):
            return (
                "coroutines are not awaited: give a plain function, such as "
                "lambda message: asyncio.run(handle(message))"
            )
        if inspect.isgeneratorfunction(candidate) or inspect.isasyncgenfunction(candidate):
            return "generators are not iterated: give a plain function, without yield"
    return None


def _unwrap(function: Any) -> Any:
    """Return the function under partials and bound methods.

    Decorated functions (`__wrapped__`) stay: their wrapper may run the coroutine, as
    async_to_sync does.
    """
    while True:
        if isinstance(function, functools.partial):
            function = function.func
        elif inspect.ismethod(function):
            function = function.__func__
        else:
            return function
