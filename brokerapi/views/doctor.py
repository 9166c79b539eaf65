"""Doctor: the faults of the installation."""

from __future__ import annotations

from django.http import HttpResponse

from brokerapi.endpoint import Call, Endpoint
from brokerapi.schema import operation
from brokerapi.shapes.doctor_shapes import DoctorReportAnswer
from messagestore.doctor import diagnosis


class Doctor(Endpoint):
    @operation("runDoctor", tag="nodes", answer=DoctorReportAnswer)
    def get(self, call: Call) -> HttpResponse:
        """Checks nodes, metadata, brokers, jobs, keys, alarms and retention, and returns
        what is wrong. Takes up to 10 s. Needs `admin` on everything.
        """
        return call.answer(
            DoctorReportAnswer.from_view(diagnosis.examine(actor=call.actor))
        )
