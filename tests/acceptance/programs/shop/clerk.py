"""clerk.py TOPIC SEED: sells until SIGTERM; every third transaction or so is rolled back,
by the seed's dice.

A sale's place among those of its customer is read after its message was sent. So it is only
right, and UNIQUE only holds, if who sends a customer's key keeps all others who send that
key waiting until the commit.
"""

from __future__ import annotations

import random
import sys
import uuid

import django

django.setup()

from django.db import transaction  # noqa: E402
from django.db.models import Max  # noqa: E402

from catmq_client.contrib.django_outbox import outbox  # noqa: E402
from tests.acceptance.programs.shop.models import Sale  # noqa: E402
from tests.support.terminated import Terminated  # noqa: E402

CUSTOMERS = 6


class ChangedMyMind(Exception):
    """Rolls a sale back."""


def sell(topic: str, dice: random.Random) -> None:
    """One transaction."""
    customer, name = f"customer {dice.randrange(CUSTOMERS)}", str(uuid.uuid4())
    with transaction.atomic():
        outbox.send(topic, name, key=customer)
        last = (
            Sale.objects.filter(customer=customer).aggregate(last=Max("place"))["last"] or 0
        )
        Sale.objects.create(id=name, customer=customer, place=last + 1)
        if dice.random() < 0.35:
            raise ChangedMyMind


def main() -> None:
    """Sells until told to stop."""
    topic, seed = sys.argv[1:]
    dice, terminated = random.Random(int(seed)), Terminated()
    sys.stdout.write("open\n")
    sys.stdout.flush()
    while not terminated.wait(dice.uniform(0, 0.004)):
        try:
            sell(topic, dice)
        except ChangedMyMind:
            continue


if __name__ == "__main__":
    main()
