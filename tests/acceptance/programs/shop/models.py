"""What the shop sells."""

from __future__ import annotations

from django.db import models


class Sale(models.Model):
    """A sale; `place` counts those of a customer in the order of their commits."""

    id = models.CharField(max_length=36, primary_key=True)
    customer = models.CharField(max_length=20)
    place = models.PositiveIntegerField()

    class Meta:
        constraints = (
            models.UniqueConstraint(
                fields=("customer", "place"), name="sale_customer_place"
            ),
        )

    def __str__(self) -> str:
        return self.id
