"""Passwords of a form wait here from its preview to its confirmation: no page ever sends
one back.

They lie encrypted among the web sessions, under a key that only this person's form with
this number has (idempotency.py), for ten minutes, and go when the form was carried out.
"""

from __future__ import annotations

import json

from django import forms
from django.contrib.sessions.backends.db import SessionStore
from django.http import HttpRequest, QueryDict

from metadata.db.secrets import decrypt, encrypt
from portal.actions import idempotency

SECRETS_KEPT_S = 600
_WHAT = "secrets"


def is_secret(field: forms.Field) -> bool:
    """Return True if a field's value must not be sent back to the browser."""
    return isinstance(field.widget, forms.PasswordInput)


def secret_fields(form: type[forms.Form]) -> list[str]:
    """The fields of a form that are secret."""
    return [name for name, field in form.base_fields.items() if is_secret(field)]


def keep_secrets(request: HttpRequest, form: forms.Form, *, number: str) -> None:
    """Keeps the secret values of a form that is shown again under a number, to be
    confirmed.
    """
    found = {name: form.data.get(name, "") for name in secret_fields(type(form))}
    if found:
        row = SessionStore(idempotency.session_key(request, number, _WHAT))
        # one that is not there yet would lose its key when it is first read
        row.save(must_create=True)
        row[_WHAT] = encrypt(json.dumps(found))
        row.set_expiry(SECRETS_KEPT_S)
        row.save()


def restore_secrets(request: HttpRequest, form: type[forms.Form]) -> QueryDict | None:
    """Return a form's fields as sent, with the secrets that were kept for it; None if they
    are gone.
    """
    data = request.POST.copy()
    found = (
        SessionStore(
            idempotency.session_key(request, request.POST[idempotency.FIELD], _WHAT)
        )
        .load()
        .get(_WHAT)
    )
    if found is None:
        return None
    kept = json.loads(decrypt(found))
    for name in secret_fields(form):
        data[name] = kept[name]
    return data


def forget_secrets(request: HttpRequest) -> None:
    """Forgets the secrets of a form that was carried out."""
    SessionStore(
        idempotency.session_key(request, request.POST[idempotency.FIELD], _WHAT)
    ).delete()
