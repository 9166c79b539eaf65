"""Work that nobody waits for."""

from django.core.mail import send_mail
from django.db.models import Count, Sum
from django.utils import timezone
from django_tasks import task  # from Django 6.0 on: from django.tasks import task

from orders.models import Order, Totals


@task(queue_name="mails", max_attempts=5, timeout=60)
def send_receipt(order_id: int) -> str:
    """Mail a receipt. The task may run twice, so it looks whether that was done."""
    order = Order.objects.get(pk=order_id)
    if order.receipt_sent_at is None:
        send_mail(
            f"Your {order}",
            f"You paid {order.total}.",
            "shop@example.com",
            [order.customer],
        )
        Order.objects.filter(pk=order_id).update(receipt_sent_at=timezone.now())
    return f"receipt of {order}"


@task
def add_up() -> int:
    """Count the orders; SCHEDULES of the settings say when."""
    found = Order.objects.aggregate(orders=Count("pk"), sum=Sum("total"))
    values = {
        "orders": found["orders"],
        "sum": found["sum"] or 0,
        "made_at": timezone.now(),
    }
    Totals.objects.update_or_create(pk=1, defaults=values)
    return int(found["orders"])
