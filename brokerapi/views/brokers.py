"""Brokers: list them, drain them, enable them."""

from __future__ import annotations

from django.http import HttpResponse

from brokerapi.endpoint import Call, Endpoint
from brokerapi.schema import list_of, operation
from brokerapi.shapes.base import ConfirmQuery
from brokerapi.shapes.node_shapes import BrokerChange
from metadata.brokers import broker_rows, discovery
from metadata.brokers.discovery import BrokerView


class Brokers(Endpoint):
    @operation("listBrokers", tag="brokers", answer=list_of("brokers", BrokerView))
    def get(self, call: Call) -> HttpResponse:
        """All brokers, at most a second old. Use those with `alive` true and state `in`."""
        brokers = discovery.list_brokers(actor=call.actor)
        return call.answer({"brokers": brokers})


class Broker(Endpoint):
    @operation("showBroker", tag="brokers", answer=BrokerView)
    def get(self, call: Call, broker: str) -> HttpResponse:
        """Shows a broker."""
        return call.answer(discovery.find_broker(name=broker, actor=call.actor))

    @operation("changeBroker", tag="brokers", request=BrokerChange, answer=BrokerView)
    def patch(self, call: Call, broker: str) -> HttpResponse:
        """Drains a broker, so that clients use the others, or enables it. Takes effect
        within a second.
        """
        state = call.read_fields(BrokerChange)["state"]
        return call.answer(
            broker_rows.set_state(name=broker, state=state, actor=call.actor)
        )

    @operation("deleteBroker", tag="brokers", query=ConfirmQuery, status=204)
    def delete(self, call: Call, broker: str) -> HttpResponse:
        """Removes a broker that is no longer alive from the registry."""
        broker_rows.forget_broker(
            name=broker, confirm=call.confirmed_name(), actor=call.actor
        )
        return call.no_content()
