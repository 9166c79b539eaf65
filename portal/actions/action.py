"""The one way to change something: a form, what it would do, a confirmation; then the verb.

GET shows the form. A POST checks it and shows what would happen, changing nothing. Only a
POST that confirms calls the verb, which checks rights again and writes the audit row. So
nothing happens by a link, a reload or a form of another site, whatever is dangerous shows
its effect first, and a double click acts once (idempotency.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, ClassVar

from django import forms
from django.contrib import messages
from django.contrib.sessions.backends.base import UpdateError
from django.db import DatabaseError
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.http.response import HttpResponseBase
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy as lazy
from django.views import View

from metadata.actors import Actor
from metadata.db import access
from metadata.errors import (
    CatmqError,
    Conflict,
    Forbidden,
    Invalid,
    MetadataUnavailable,
    NotFound,
)
from portal.actions import form_secrets, idempotency
from portal.auth import error_pages, error_texts
from portal.auth.access import actor
from portal.kit import pages
from portal.kit.pages import Link
from portal.kit.tables import Table, Text

# in the URL: shows at once what would happen, where a link has filled in the form
PREVIEW_PARAMETER = "preview"
CONFIRM_FIELD = "confirm"  # the field of a name that is typed again
PREVIEW_TITLE = lazy("Preview of the changes")


class NoFields(forms.Form):
    """The form of an action that needs to know nothing more."""


@dataclass(frozen=True, slots=True)
class Preview:
    """Effects an action would have: sentences, and perhaps a table or a text with its
    differences.

    `warnings`: sentences that must not be overlooked, though it may be confirmed.
    `blocked`: it would be
    refused, as the table says; the form is shown again instead of a confirmation.
    """

    effects: Sequence[Text] = ()
    table: Table | None = None
    diff: Sequence[tuple[str, str]] = field(default_factory=tuple)  # (sign, line)
    blocked: bool = False
    warnings: Sequence[Text] = ()


class ConfirmForm(forms.Form):
    confirm = forms.CharField(label=lazy("Type the name to confirm"), max_length=210)


class Action(View):
    """A page that does one thing. Subclasses say what: `title`, `preview`, `run`,
    `back_to`.
    """

    title: ClassVar[Text] = ""  # with words of the URL, such as %(name)s
    # the page where its effect is seen, and the words of its URL
    back_to: ClassVar[tuple[str, ...]] = ()
    effect: ClassVar[Text] = ""  # its effect, where that is always the same
    page_after: ClassVar[str] = ""  # the page to go to when that one is gone
    needs_right_on_all: ClassVar[bool] = False  # the right must reach everything

    form_class: ClassVar[type[forms.Form]] = NoFields
    right: ClassVar[str] = "manage"
    object_kind: ClassVar[str] = "topic"
    section: ClassVar[str] = "topics"
    button: ClassVar[Text] = ""
    danger: ClassVar[bool] = False
    preview_title: ClassVar[Text] = PREVIEW_TITLE
    template: ClassVar[str] = "kit/action"

    actor: Actor

    @property
    def name(self) -> str:
        return self.url_argument("name")

    def heading(self) -> Text:
        title: str = str(self.title) % self.kwargs
        return title

    def preview(self, fields: dict[str, Any]) -> Preview:
        """Describe what `run` would do with these fields. Raises CatmqError when it would
        be refused.
        """
        return Preview(effects=[self.effect])

    def run(self, fields: dict[str, Any]) -> Text:
        """Does it; a sentence that says what was done."""
        raise NotImplementedError

    def back(self) -> str:
        """Return the URL of the page that this action belongs to, where its effect is seen."""
        page, *words = self.back_to
        return pages.page_url(page, *(self.kwargs[word] for word in words))

    def crumbs(self) -> list[Link]:
        """Return the way to this page: its section, and the page of the thing it acts on."""
        found, words = pages.section_crumbs(self.section), self.back_to[1:]
        if words:
            found.append(Link(self.url_argument(words[-1]), self.back()))
        return found

    def right_target(self) -> str:
        """Return the name that the right must reach: the first word of the URL, or
        everything.
        """
        return (
            "*" if self.needs_right_on_all else str(next(iter(self.kwargs.values()), "*"))
        )

    def url_argument(self, name: str) -> str:
        return str(self.kwargs[name])

    def initial(self) -> dict[str, Any]:
        return {
            name: self.request.GET[name]
            for name in self.form_class.base_fields
            if name in self.request.GET
        }

    def extra_context(self) -> dict[str, Any]:
        return {}

    def dispatch(self, request: HttpRequest, *args: Any, **words: Any) -> HttpResponseBase:
        """Nobody gets further without the right; who sends a form twice is told what the
        first did.
        """
        self.actor = actor(request)
        if request.method == "POST" and idempotency.is_numbered(request):
            earlier = idempotency.find_earlier_result(request)
            if earlier is not None:
                return self._answer_repeat(earlier)
        access.require(self.actor, self.right, self.right_target(), what=self.object_kind)
        return super().dispatch(request, *args, **words)

    def get(self, request: HttpRequest, **words: Any) -> HttpResponse:
        """The form; or, where there is nothing to fill in, at once what would happen."""
        if self.form_class is NoFields:
            return self._show_preview(NoFields({}))
        form = self.form_class(initial=self.initial())
        if request.GET.get(PREVIEW_PARAMETER) == "yes":
            complete = self.form_class({name: _filled(form[name]) for name in form.fields})
            if complete.is_valid():
                return self._show_preview(complete)
        return self._show_form(form)

    def post(self, request: HttpRequest, **words: Any) -> HttpResponse:
        """Show what would happen, or with `confirmed` do it."""
        form = self.bind_form()
        if not form.is_valid():
            return self._show_form(form, status=400)
        if not self._is_confirmed():
            return self._show_preview(form)
        if not idempotency.claim_number(request):
            return self._answer_repeat(idempotency.EarlierResult("", ""))
        return self._execute(form)

    def _is_confirmed(self) -> bool:
        return self.request.POST.get("confirmed") == "yes" and idempotency.is_numbered(
            self.request
        )

    def bind_form(self) -> forms.Form:
        """The form as it was sent; a confirmed one has its passwords back, which no page
        carries.
        """
        if not form_secrets.secret_fields(self.form_class) or not self._is_confirmed():
            return self.form_class(self.request.POST)
        data = form_secrets.restore_secrets(self.request, self.form_class)
        form = self.form_class(self.request.POST if data is None else data)
        if data is None:
            form.add_error(None, _("This page has expired. Enter the passwords again."))
        return form

    def _execute(self, form: forms.Form) -> HttpResponse:
        try:
            said = self.run(form.cleaned_data)
        except CatmqError as error:
            if isinstance(error, Forbidden | MetadataUnavailable):
                raise
            # after others it is not known
            if isinstance(error, Invalid | Conflict | NotFound):
                idempotency.release_number(self.request)
            return self._show_error(form, error)
        answer = self.respond(said)
        # it was done; a session that is lost then changes nothing
        with suppress(DatabaseError, UpdateError):
            idempotency.record_result(
                self.request, said=str(said), url=answer.get("Location", self.back())
            )
            form_secrets.forget_secrets(self.request)
        return answer

    def _answer_repeat(self, earlier: idempotency.EarlierResult) -> HttpResponse:
        if earlier.said:
            said = (
                _("This form was submitted more than once and carried out once: %s")
                % earlier.said
            )
        else:
            said = _(
                "This form was already submitted. It is still running, or its outcome is unknown."
            )
        messages.info(self.request, said)
        return HttpResponseRedirect(earlier.url or self.back())

    def respond(self, said: Text) -> HttpResponse:
        """After the deed: back to where its effect is seen, so that a reload repeats
        nothing.
        """
        messages.success(self.request, str(said))
        return HttpResponseRedirect(
            pages.page_url(self.page_after) if self.page_after else self.back()
        )

    def _show_preview(self, form: forms.Form) -> HttpResponse:
        form.is_valid()
        return self._preview_form(form, shown=form)

    def _preview_form(
        self, form: forms.Form, *, shown: forms.Form, status: int = 200
    ) -> HttpResponse:
        """Show what a form would do; `shown` is the one to be confirmed."""
        try:
            self._check_confirmation(form.cleaned_data)
            preview = self.preview(form.cleaned_data)
        except (Forbidden, MetadataUnavailable):
            raise
        except CatmqError as error:
            return self._show_error(form, error)
        if preview.blocked:
            return self._show_form(form, preview=preview, status=400)
        number = idempotency.new_number()
        form_secrets.keep_secrets(self.request, form, number=number)
        return self._show_form(shown, preview=preview, number=number, status=status)

    def _check_confirmation(self, fields: dict[str, Any]) -> None:
        """Raises Invalid if a name that was to be typed again is another: before anything
        else is said.
        """
        name = self.kwargs.get("name")
        if CONFIRM_FIELD in fields and fields[CONFIRM_FIELD] != name:
            raise Invalid.field(
                CONFIRM_FIELD, _("The name does not match. Type %s.") % name
            )

    def _show_error(self, form: forms.Form, error: CatmqError) -> HttpResponse:
        named = [one for one in error.errors if one.field in form.fields]
        for one in named:
            form.add_error(one.field, error_texts.describe_error(error, one.message))
        if not named:
            form.add_error(None, error_texts.describe_error(error))
        return self._show_form(form, status=error_pages.http_status(error))

    def _show_form(
        self,
        form: forms.Form,
        *,
        preview: Preview | None = None,
        number: str = "",
        status: int = 200,
    ) -> HttpResponse:
        return pages.render_page(
            self.request,
            self.template,
            self.heading(),
            status=status,
            form=form,
            carried=[one for one in form if not form_secrets.is_secret(one.field)]
            if preview
            else (),
            preview=preview,
            form_number=number,
            section=self.section,
            crumbs=self.crumbs(),
            back=self.back(),
            button=self.button,
            danger=self.danger,
            preview_title=self.preview_title,
            **self.extra_context(),
        )


def _filled(field: forms.BoundField) -> Any:
    """Return the value that a field would be sent with as it stands: a choice stands at its
    first.
    """
    value = field.value()
    if value is None and isinstance(field.field, forms.ChoiceField):
        return next((key for key, _label in field.field.widget.choices), None)
    return value


class Delete(Action):
    """Takes away what has the name that is typed again."""

    form_class = ConfirmForm
    danger = True


class Create(Action):
    """Makes something whose name is typed: a topic or group."""

    def right_target(self) -> str:
        """Return the name that was typed; without one, who may manage anything may open the
        form.
        """
        patterns = (
            *self.actor.rights.get("manage", ()),
            *self.actor.rights.get("admin", ()),
        )
        return self.request.POST.get("name", "").strip() or next(iter(patterns), "*")

    def describe_effect(self, fields: dict[str, Any]) -> Text:
        """Describe what would be made."""
        raise NotImplementedError

    def preview(self, fields: dict[str, Any]) -> Preview:
        """Describe what would be made. Raises Forbidden for owners unless the actor may do
        all they get.
        """
        if fields["owners"]:
            access.require_ownership(self.actor, fields["name"], what=self.object_kind)
        return Preview(effects=[self.describe_effect(fields)])
