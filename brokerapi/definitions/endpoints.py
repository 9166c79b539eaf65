"""Definitions of topics, groups and subscriptions: export and import."""

from __future__ import annotations

from django.http import HttpResponse

from brokerapi.definitions.definition_shapes import (
    MOST_BYTES,
    Definitions,
    ExportQuery,
    ImportAnswer,
    ImportRequest,
)
from brokerapi.endpoint import Call, Endpoint
from brokerapi.schema import operation
from messagestore.topology import imports
from metadata.definitions.exports import export


class Export(Endpoint):
    @operation(
        "exportDefinitions", tag="definitions", query=ExportQuery, answer=Definitions
    )
    def get(self, call: Call) -> HttpResponse:
        """Topics, groups and subscriptions on which the key has any right, as a document
        for an import.
        """
        return call.answer(export(topic=call.query(ExportQuery).topic, actor=call.actor))


class Import(Endpoint):
    @operation(
        "importDefinitions", tag="definitions", request=ImportRequest, answer=ImportAnswer
    )
    def post(self, call: Call) -> HttpResponse:
        """Creates the objects of a document that this installation lacks. `dry_run` creates
        nothing.
        """
        # A document may list thousands of topics, so its limit is above that of other
        # requests.
        fields = call.read_fields(ImportRequest, most_bytes=MOST_BYTES)
        plan = imports.import_definitions(**fields, actor=call.actor)
        return call.answer(ImportAnswer.from_view(plan, dry_run=fields["dry_run"]))
