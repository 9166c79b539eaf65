"""Coroutines in tests: each test has an event loop of its own and a limit."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")
LIMIT_S = 20.0


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine in a new event loop. Any error that the loop would log fails the test."""
    errors: list[dict[str, Any]] = []

    async def main() -> T:
        asyncio.get_running_loop().set_exception_handler(
            lambda loop, context: errors.append(context)
        )
        return await asyncio.wait_for(coroutine, LIMIT_S)

    result = asyncio.run(main())
    assert not errors, errors
    return result


async def happens(true: Callable[[], object]) -> None:
    """Wait until `true()` is true, while the loop goes on."""
    deadline = time.monotonic() + LIMIT_S
    while not true():
        assert time.monotonic() < deadline, f"did not happen within {LIMIT_S} s"
        await asyncio.sleep(0.005)
