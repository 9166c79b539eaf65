"""Orders in Django's admin, beside the tasks."""

from django.contrib import admin

from orders.models import Order

admin.site.register(Order, list_display=("id", "customer", "total", "receipt_sent_at"))
