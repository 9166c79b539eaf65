"""Orders, and what they come to."""

from django.db import models


class Order(models.Model):
    """What a customer bought; a task sends the receipt, and a job of Celery packs it."""

    customer = models.CharField(max_length=50)
    total = models.DecimalField(max_digits=10, decimal_places=2)
    receipt_sent_at = models.DateTimeField(null=True)
    packed_at = models.DateTimeField(null=True)

    def __str__(self) -> str:
        return f"order {self.pk} of {self.customer}"


class Totals(models.Model):
    """The number of orders and their sum, as the schedule last found them."""

    orders = models.PositiveIntegerField(default=0)
    sum = models.DecimalField(max_digits=12, decimal_places=2, default=0)
    made_at = models.DateTimeField(null=True)

    def __str__(self) -> str:
        return f"{self.orders} orders"
