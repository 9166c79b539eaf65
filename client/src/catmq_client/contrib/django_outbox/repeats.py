"""Transactions that the database rolled back, and that are run again."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import TypeVar

from django.db import OperationalError, transaction

R = TypeVar("R")

TRIES = 3
# of MySQL and MariaDB: deadlock; record changed since it was read
ROLLED_BACK = {1213, 1020}


def repeated(work: Callable[[], R], alias: str) -> R:
    """Return what `work` returns, which is one transaction on a database; up to three
    tries.

    Inside the caller's transaction it runs once: that is rolled back, too.
    """
    tries = 1 if transaction.get_connection(alias).in_atomic_block else TRIES
    for left in reversed(range(tries)):
        try:
            return work()
        except OperationalError as error:
            if not left or error.args[:1] not in [(number,) for number in ROLLED_BACK]:
                raise
            time.sleep(random.uniform(0.005, 0.05))
    raise AssertionError("not reached")
