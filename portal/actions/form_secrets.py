"""Passwords of a form between its preview and its confirmation, so that no page contains
them.

They are encrypted and stored among the web sessions for ten minutes, under a key derived
from the session, the page and the form's number (idempotency.py). They are deleted once the
form is executed.
"""

from __future__ import annotations

import json

from django import forms
from django.contrib.sessions.backends.db import SessionStore
from django.http import HttpRequest, QueryDict

from metadata.db.secrets import decrypt, encrypt
from portal.actions import idempotency

# Seconds between preview and confirmation.
SECRETS_KEPT_S = 600
_PURPOSE = "secrets"


def is_secret(field: forms.Field) -> bool:
    """Return True if the value of a field must not be sent back to the browser."""
    return isinstance(field.widget, forms.PasswordInput)


def secret_fields(form: type[forms.Form]) -> list[str]:
    """Return the names of a form's secret fields."""
    return [name for name, field in form.base_fields.items() if is_secret(field)]


def keep_secrets(request: HttpRequest, form: forms.Form, *, number: str) -> None:
    """Store the secret values of a form until the form with this number is confirmed."""
    values = {name: form.data.get(name, "") for name in secret_fields(type(form))}
    if values:
        session = SessionStore(idempotency.session_key(request, number, _PURPOSE))
        # A session without a row gets a new key when it is first read, so the row comes first.
        session.save(must_create=True)
        # Encrypted with the key of the installation, so that the database has no passwords.
        session[_PURPOSE] = encrypt(json.dumps(values))
        session.set_expiry(SECRETS_KEPT_S)
        session.save()


def restore_secrets(request: HttpRequest, form: type[forms.Form]) -> QueryDict | None:
    """Return the submitted fields with the stored secrets, None if these have expired."""
    data = request.POST.copy()
    encrypted = (
        SessionStore(
            idempotency.session_key(request, request.POST[idempotency.FIELD], _PURPOSE)
        )
        .load()
        .get(_PURPOSE)
    )
    if encrypted is None:
        return None
    values = json.loads(decrypt(encrypted))
    for name in secret_fields(form):
        data[name] = values[name]
    return data


def forget_secrets(request: HttpRequest) -> None:
    """Delete the stored secrets of an executed form."""
    SessionStore(
        idempotency.session_key(request, request.POST[idempotency.FIELD], _PURPOSE)
    ).delete()
