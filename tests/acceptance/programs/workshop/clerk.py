"""clerk.py SEED: places orders until SIGTERM; every third transaction or so is rolled back."""

from __future__ import annotations

import random
import sys
import uuid

import django

django.setup()

from django.db import DatabaseError, InterfaceError, connection, transaction  # noqa: E402

from tests.acceptance.programs.workshop.jobs import make  # noqa: E402
from tests.acceptance.programs.workshop.models import Order  # noqa: E402
from tests.support.terminated import Terminated  # noqa: E402


class ChangedMyMind(Exception):
    """Rolls an order back."""


def place(dice: random.Random) -> None:
    """One transaction, with the task before or after its order."""
    name, is_first = str(uuid.uuid4()), dice.random() < 0.5
    with transaction.atomic():
        if is_first:
            make.enqueue(name)
        Order.objects.create(id=name)
        if not is_first:
            make.enqueue(name)
        if dice.random() < 0.35:
            raise ChangedMyMind


def main() -> None:
    """Work until told to stop."""
    dice, terminated = random.Random(int(sys.argv[1])), Terminated()
    sys.stdout.write("open\n")
    sys.stdout.flush()
    while not terminated.wait(dice.uniform(0, 0.06)):
        try:
            place(dice)
        except ChangedMyMind:
            continue
        # it is away; nobody knows of the commit under way
        except (DatabaseError, InterfaceError):
            connection.close()


if __name__ == "__main__":
    main()
