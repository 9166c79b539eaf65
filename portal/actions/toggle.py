"""Switching an object to its other state.

The state that the page offered is set, even if another user switched it meanwhile.
"""

from __future__ import annotations

from typing import Any

from django import forms
from django.http import HttpRequest, HttpResponse

from portal.actions.action import Action


class StateFields(forms.Form):
    state = forms.CharField(max_length=20, widget=forms.HiddenInput)


class Toggle(Action):
    """An action that offers the other state of an object and sets it. Subclasses define
    that state.
    """

    form_class = StateFields

    def offered_state(self) -> str:
        """Return the state that the page offers."""
        raise NotImplementedError

    def get(self, request: HttpRequest, **arguments: Any) -> HttpResponse:
        """Show the effect of the offered state."""
        return self._show_preview(StateFields({"state": self.offered_state()}))
