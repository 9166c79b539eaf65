"""Switching something to its other state: the one that the page offered, whatever others
did meanwhile.
"""

from __future__ import annotations

from typing import Any

from django import forms
from django.http import HttpRequest, HttpResponse

from portal.actions.action import Action


class StateFields(forms.Form):
    state = forms.CharField(max_length=20, widget=forms.HiddenInput)


class Toggle(Action):
    """An action that offers the other state and carries it through; subclasses say which
    that is.
    """

    form_class = StateFields

    def other(self) -> str:
        """Return the state that is offered."""
        raise NotImplementedError

    def get(self, request: HttpRequest, **words: Any) -> HttpResponse:
        """Show what the other state would mean."""
        return self._show_preview(StateFields({"state": self.other()}))
