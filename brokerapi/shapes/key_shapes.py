"""API keys, and the API about itself."""

from __future__ import annotations

from rest_framework import serializers

from brokerapi.shapes.fields import Answer, Change, Number, Request, Text, texts
from metadata.rules.settings import KEY


class KeyCreate(Request):
    """A new API key: right → name patterns."""

    settings = KEY
    name = Text()
    rights = serializers.DictField(child=texts())


class KeyChange(Change):
    """Changes to an API key."""

    settings = KEY


# Without the id; the settings are declared with those of requests.
class KeyAnswer(Answer):
    """An API key, without its secret."""

    settings = KEY
    name = Text()
    rights = serializers.DictField(child=texts())
    created_at_ms = Number()


class NewKeyAnswer(KeyAnswer):
    """A new API key; only this answer has `api_key`."""

    api_key = Text()


class AboutAnswer(Answer):
    """Version, features and limits."""

    name = Text()
    version = Text()
    api_version = Number()
    features = texts()
    limits = serializers.DictField(child=Number())
