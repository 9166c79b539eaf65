"""API keys: who may do what."""

from __future__ import annotations

from django.http import HttpResponse

from brokerapi import answers, serializers
from brokerapi.endpoint import Call, Endpoint
from brokerapi.schema import operation, page_of
from brokerapi.wire.queries import ConfirmQuery, ListQuery
from metadata import keys


class Keys(Endpoint):
    """/keys"""

    @operation("listKeys", tag="keys", query=ListQuery, answer=page_of("keys", serializers.KeyAnswer))
    def get(self, call: Call) -> HttpResponse:
        """The keys' names and rights; their secrets are not kept."""
        page = keys.page(window=call.window(), actor=call.actor)
        return call.answer(answers.page("keys", page, answers.key))

    @operation(
        "createKey", tag="keys", request=serializers.KeyCreate, answer=serializers.NewKeyAnswer, status=201
    )
    def post(self, call: Call) -> HttpResponse:
        """Creates a key. The answer alone shows it: keep it."""
        asked = call.fields(serializers.KeyCreate)
        name, rights = asked.pop("name"), asked.pop("rights")
        view, plaintext = keys.create(name=name, rights=rights, settings=asked, actor=call.actor)
        return call.created({**answers.key(view), "api_key": plaintext}, "keys", name)


class Key(Endpoint):
    """/keys/{key}"""

    @operation("showKey", tag="keys", answer=serializers.KeyAnswer)
    def get(self, call: Call, key: str) -> HttpResponse:
        """One key's rights."""
        return call.answer(answers.key(keys.named(name=key, actor=call.actor)))

    @operation("changeKey", tag="keys", request=serializers.KeyChange, answer=serializers.KeyAnswer)
    def patch(self, call: Call, key: str) -> HttpResponse:
        """Changes what the key may send in a second."""
        settings = call.fields(serializers.KeyChange)
        return call.answer(answers.key(keys.update(name=key, settings=settings, actor=call.actor)))

    @operation("deleteKey", tag="keys", query=ConfirmQuery, status=204)
    def delete(self, call: Call, key: str) -> HttpResponse:
        """Deletes a key; whoever uses it is refused from then on."""
        keys.delete(name=key, confirm=call.confirm(), actor=call.actor)
        return call.done()
