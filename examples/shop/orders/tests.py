"""The shop without a broker: run_tasks runs what is due, and calls what waits for a commit."""

import json
from datetime import timedelta
from decimal import Decimal

from django.core import mail
from django.db import DataError
from django.test import TestCase
from shop.celery import app

from catmq_client.contrib.django_outbox.models import OutboxMessage
from catmq_client.contrib.django_tasks.testing import run_tasks
from catmq_client.errors import OptionError
from orders.models import Order, Totals
from orders.placing import place_order
from orders.tasks import add_up


class OrderTests(TestCase):
    def setUp(self) -> None:
        app.conf.task_always_eager = True  # jobs of Celery run at once, without a broker
        self.addCleanup(app.conf.update, task_always_eager=False)

    def test_an_order_sends_a_receipt_once(self) -> None:
        order = place_order("alice", Decimal("9.50"))
        run_tasks(raise_failures=True)
        order.refresh_from_db()
        self.assertIsNotNone(order.receipt_sent_at)
        self.assertIsNotNone(order.packed_at)
        self.assertEqual([one.to for one in mail.outbox], [["alice"]])

    def test_an_order_is_told_of_under_the_key_of_its_customer(self) -> None:
        place_order("bob", Decimal(3))
        message = OutboxMessage.objects.get(topic="shop.orders")
        self.assertEqual(
            (message.key, json.loads(bytes(message.body))["total"]), ("bob", "3")
        )

    def test_an_order_that_is_refused_leaves_nothing(self) -> None:
        # of the message's key, or of the column
        with self.assertRaises((OptionError, DataError)):
            place_order("carol" * 50, Decimal(1))
        self.assertEqual((Order.objects.count(), OutboxMessage.objects.count()), (0, 0))

    def test_a_receipt_whose_order_is_gone_has_failed_after_its_attempts(self) -> None:
        place_order("dave", Decimal(1)).delete()
        attempts = run_tasks(after=timedelta(hours=1))
        self.assertEqual([one.status for one in attempts], ["READY"] * 4 + ["FAILED"])

    def test_totals_are_added_up(self) -> None:
        for customer in ("alice", "bob"):
            place_order(customer, Decimal("1.25"))
        add_up.enqueue()
        run_tasks(queues=["default"])
        self.assertEqual(
            (Totals.objects.get().orders, Totals.objects.get().sum), (2, Decimal("2.50"))
        )

    def test_the_page_takes_orders(self) -> None:
        answer = self.client.post(
            "/orders/", {"customer": "erin", "total": "2"}, content_type="application/json"
        )
        self.assertEqual((answer.status_code, answer.json()["customer"]), (201, "erin"))
        self.assertEqual(
            self.client.get(f"/orders/{answer.json()['id']}/").json()["total"], "2.00"
        )
        self.assertEqual(
            self.client.post("/orders/", "{", content_type="application/json").status_code,
            400,
        )
