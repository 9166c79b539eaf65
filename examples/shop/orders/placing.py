"""An order, its receipt and the message that tells of it: all of them exist, or none.

The job of Celery is sent after the commit, as Celery does: if the process dies in between,
it is not sent.
"""

from decimal import Decimal

from django.db import transaction

from catmq_client.contrib.django_outbox import outbox
from orders.jobs import pack
from orders.models import Order
from orders.tasks import send_receipt


def place_order(customer: str, total: Decimal) -> Order:
    with transaction.atomic():
        order = Order.objects.create(customer=customer, total=total)
        send_receipt.enqueue(order.pk)
        pack.delay_on_commit(order.pk)
        outbox.send(
            "shop.orders",
            json={"id": order.pk, "total": str(total)},
            key=customer,
            tag="new",
        )
    return order
