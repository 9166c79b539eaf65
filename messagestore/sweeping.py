"""Sweeps: the same act for many items, of which a bad one stops none of the rest."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import TypeVar

from metadata.errors import CatmqError

T = TypeVar("T")
log = logging.getLogger(__name__)


def each(items: Iterable[T], *, act: Callable[[T], object], name: Callable[[T], str]) -> int:
    """Runs `act` for every item; how many it was done for: not those for which it answers False, or raises.

    What it raises is logged under the item's name, what nobody expected with its traceback: a sweep comes
    again and again, and would meet the same item first each time.
    """
    done = 0
    for one in items:
        try:
            done += act(one) is not False
        except CatmqError as error:
            log.warning("%s is left for the next sweep: %s", name(one), error.detail)
        except Exception:
            log.exception("%s cannot be swept", name(one))
    return done
