"""Jobs of Celery, as an application has them that used it before."""

from celery import shared_task
from django.utils import timezone

from orders.models import Order


@shared_task(acks_late=True)
def pack(order_id: int) -> None:
    """Pack an order. The job may run twice, so it changes only what is not packed."""
    Order.objects.filter(pk=order_id, packed_at=None).update(packed_at=timezone.now())
