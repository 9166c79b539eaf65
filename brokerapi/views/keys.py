"""API keys and their rights."""

from __future__ import annotations

from django.http import HttpResponse

from brokerapi.endpoint import Call, Endpoint
from brokerapi.schema import operation, page_of
from brokerapi.shapes.base import ConfirmQuery, ListQuery
from brokerapi.shapes.key_shapes import KeyAnswer, KeyChange, KeyCreate, NewKeyAnswer
from metadata.users import api_keys


class Keys(Endpoint):
    @operation("listKeys", tag="keys", query=ListQuery, answer=page_of("keys", KeyAnswer))
    def get(self, call: Call) -> HttpResponse:
        """Names and rights of the API keys. Secrets are not stored."""
        page = api_keys.list_keys(window=call.window(), actor=call.actor)
        return call.answer(KeyAnswer.page("keys", page))

    @operation("createKey", tag="keys", request=KeyCreate, answer=NewKeyAnswer, status=201)
    def post(self, call: Call) -> HttpResponse:
        """Creates an API key. Only this answer has the key itself."""
        fields = call.read_fields(KeyCreate)
        name, rights = fields.pop("name"), fields.pop("rights")
        view, plaintext = api_keys.create(
            name=name, rights=rights, settings=fields, actor=call.actor
        )
        return call.created(NewKeyAnswer.from_view(view, api_key=plaintext), "keys", name)


class Key(Endpoint):
    @operation("showKey", tag="keys", answer=KeyAnswer)
    def get(self, call: Call, key: str) -> HttpResponse:
        """Shows the rights of a key."""
        return call.answer(
            KeyAnswer.from_view(api_keys.find_key(name=key, actor=call.actor))
        )

    @operation("changeKey", tag="keys", request=KeyChange, answer=KeyAnswer)
    def patch(self, call: Call, key: str) -> HttpResponse:
        """Changes the quotas of the key."""
        settings = call.read_fields(KeyChange)
        return call.answer(
            KeyAnswer.from_view(
                api_keys.update(name=key, settings=settings, actor=call.actor)
            )
        )

    @operation("deleteKey", tag="keys", query=ConfirmQuery, status=204)
    def delete(self, call: Call, key: str) -> HttpResponse:
        """Deletes a key. Requests with it are refused from then on."""
        api_keys.delete(name=key, confirm=call.confirmed_name(), actor=call.actor)
        return call.no_content()
