"""The views of the Django project."""

from __future__ import annotations

import os

from asgiref.sync import sync_to_async
from django.db import transaction
from django.http import HttpRequest, JsonResponse
from django.urls import path

from catmq_client.aio import AsyncProducer
from catmq_client.contrib.django_outbox import outbox
from tests.acceptance.programs.web.models import Order

producer = AsyncProducer()


async def send(request: HttpRequest, name: str) -> JsonResponse:
    """Send to a broker. Django cancels the view if its client leaves."""
    receipt = await producer.send(os.environ["WEB_TOPIC"], name, key=name.partition("-")[0])
    return JsonResponse({"queue": receipt.queue, "offset": receipt.offset})


def write_order(name: str) -> None:
    with transaction.atomic():
        Order.objects.create(name=name)
        outbox.send(os.environ["WEB_TOPIC"], name, key=name.partition("-")[0])


async def place_order(request: HttpRequest, name: str) -> JsonResponse:
    """Commit an order with its message. A client that leaves does not interrupt that."""
    await sync_to_async(write_order)(name)
    return JsonResponse({})


urlpatterns = [path("send/<name>", send), path("orders/<name>", place_order)]
