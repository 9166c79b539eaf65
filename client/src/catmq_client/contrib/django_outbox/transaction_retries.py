"""Repetition of transactions that the database rolled back."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import TypeVar

from django.db import OperationalError, transaction

R = TypeVar("R")

TRIES = 3
# Errors of MySQL and MariaDB: 1213 deadlock; 1020 record has changed since last read, which
# MariaDB 11.6 and later raise at REPEATABLE READ.
ROLLBACK_ERRORS = {1213, 1020}


def run_transaction(work: Callable[[], R], alias: str) -> R:
    """Call `work`, which is one transaction on the database, up to TRIES times. Return its
    result.

    Inside a transaction of the caller it is called once: the rollback has ended that
    transaction, too, so only its owner can repeat it. Raises the error of the last call, or
    any other error at once.
    """
    tries = 1 if transaction.get_connection(alias).in_atomic_block else TRIES
    # The last try is below: its errors are the caller's.
    for _ in range(tries - 1):
        try:
            return work()
        except OperationalError as error:
            number = error.args[0] if error.args else None
            if number not in ROLLBACK_ERRORS:
                raise
            # A random pause: the transactions that collided do not collide again.
            time.sleep(random.uniform(0.005, 0.05))
    return work()
