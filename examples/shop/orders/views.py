"""The shop over HTTP, in JSON."""

import json
from decimal import Decimal, InvalidOperation

from django.forms.models import model_to_dict
from django.http import HttpRequest, JsonResponse
from django.shortcuts import get_object_or_404
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_GET, require_POST

from orders.models import Order, Totals
from orders.placing import place_order


@csrf_exempt  # a shop asks who orders
@require_POST
def place(request: HttpRequest) -> JsonResponse:
    try:
        asked = json.loads(request.body)
        customer, total = str(asked["customer"]), Decimal(str(asked["total"]))
    except (ValueError, KeyError, TypeError, InvalidOperation):
        return JsonResponse(
            {"error": 'send {"customer": "alice", "total": "9.50"}'}, status=400
        )
    return JsonResponse(_shown(place_order(customer, total)), status=201)


@require_GET
def show(request: HttpRequest, pk: int) -> JsonResponse:
    return JsonResponse(_shown(get_object_or_404(Order, pk=pk)))


@require_GET
def totals(request: HttpRequest) -> JsonResponse:
    return JsonResponse(model_to_dict(Totals.objects.filter(pk=1).first() or Totals()))


def _shown(order: Order) -> dict[str, object]:
    return {
        "id": order.pk,
        "customer": order.customer,
        "total": str(order.total),
        "receipt_sent_at": order.receipt_sent_at,
        "packed_at": order.packed_at,
    }
