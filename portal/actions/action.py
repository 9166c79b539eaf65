"""Actions: every change goes through a form, a preview and a confirmation.

GET shows the form. A POST checks it and shows a preview, without changing anything. Only a
POST that confirms the preview calls the verb, which checks rights again and writes the
audit row. So a link, a reload or another site's form changes nothing, a dangerous action
shows its effect first, and a double click is carried out once (idempotency.py).
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
from metadata.rules.rights import Right
from portal.actions import form_secrets, idempotency
from portal.auth import error_pages, error_texts
from portal.auth.access import actor
from portal.kit import pages
from portal.kit.pages import Link
from portal.kit.tables import Table, Text

# URL parameter of a link that fills in the form: shows its preview at once.
PREVIEW_PARAMETER = "preview"
# Form field in which the user types the name again.
CONFIRM_FIELD = "confirm"
PREVIEW_TITLE = lazy("Preview of the changes")


class NoFields(forms.Form):
    """The form of an action without input."""


@dataclass(frozen=True, slots=True)
class Preview:
    """Effects that an action would have, as sentences, with a table or a diff if needed.

    `diff` has pairs of sign and line. `blocked`: the action would be refused, as the table
    shows, so the form is shown again instead of a confirmation. `warnings` are highlighted
    sentences; the action can still be confirmed.
    """

    effects: Sequence[Text] = ()
    table: Table | None = None
    diff: Sequence[tuple[str, str]] = field(default_factory=tuple)
    blocked: bool = False
    warnings: Sequence[Text] = ()


class ConfirmForm(forms.Form):
    confirm = forms.CharField(label=lazy("Type the name to confirm"), max_length=210)


class Action(View):
    """A page that changes something.

    Subclasses define `title`, `back_to`, `run()`, and `preview()` or `effect`.
    """

    # May contain URL arguments, such as %(name)s.
    title: ClassVar[Text] = ""
    # The page that shows the effect, and the URL arguments it needs.
    back_to: ClassVar[tuple[str, ...]] = ()
    # The effect, if it is always the same.
    effect: ClassVar[Text] = ""
    # The page to open afterwards, if the action removes the page in `back_to`.
    page_after: ClassVar[str] = ""
    # The actor needs the right on every name, not only on the name in the URL.
    needs_right_on_all: ClassVar[bool] = False

    # An action whose fields depend on the object sets its own in setup().
    form_class: type[forms.Form] = NoFields
    right: ClassVar[Right] = Right.MANAGE
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
        """Return the title with the URL arguments filled in."""
        heading: str = str(self.title) % self.kwargs
        return heading

    def preview(self, fields: dict[str, Any]) -> Preview:
        """Describe what `run` would do with these fields. Raises CatmqError if it would be
        refused.
        """
        return Preview(effects=[self.effect])

    def run(self, fields: dict[str, Any]) -> Text:
        """Execute the action. Return the message shown to the user."""
        raise NotImplementedError

    def back(self) -> str:
        """Return the URL of the page that shows the effect."""
        page, *arguments = self.back_to
        return pages.page_url(page, *(self.kwargs[argument] for argument in arguments))

    def crumbs(self) -> list[Link]:
        """Return links to the section, and to the page of the object that the action
        changes.
        """
        crumbs, arguments = pages.section_crumbs(self.section), self.back_to[1:]
        if arguments:
            crumbs.append(Link(self.url_argument(arguments[-1]), self.back()))
        return crumbs

    def right_target(self) -> str:
        """Return the name on which the actor needs the right: the first URL argument, or
        "*" for all.
        """
        return (
            "*" if self.needs_right_on_all else str(next(iter(self.kwargs.values()), "*"))
        )

    def url_argument(self, name: str) -> str:
        """Return an argument of the page's route."""
        return str(self.kwargs[name])

    def initial(self) -> dict[str, Any]:
        """Return initial values of the form, taken from the URL."""
        return {
            name: self.request.GET[name]
            for name in self.form_class.base_fields
            if name in self.request.GET
        }

    def extra_context(self) -> dict[str, Any]:
        """Return further template context."""
        return {}

    def dispatch(
        self, request: HttpRequest, *args: Any, **arguments: Any
    ) -> HttpResponseBase:
        """Check the permission. Answer a repeated form with the result of the first
        submission.
        """
        self.actor = actor(request)
        if request.method == "POST" and idempotency.is_numbered(request):
            # Before the check of rights: the first submission may have taken the right
            # away, and its result is still shown.
            earlier = idempotency.find_earlier_result(request)
            if earlier is not None:
                return self._answer_repeat(earlier)
        access.require(self.actor, self.right, self.right_target(), what=self.object_kind)
        return super().dispatch(request, *args, **arguments)

    def get(self, request: HttpRequest, **arguments: Any) -> HttpResponse:
        """Show the form. Without fields, or if a link asks for it, show the preview at
        once.
        """
        if self.form_class is NoFields:
            return self._show_preview(NoFields({}))
        form = self.form_class(initial=self.initial())
        if request.GET.get(PREVIEW_PARAMETER) == "yes":
            filled_form = self.form_class(
                {name: _initial_value(form[name]) for name in form.fields}
            )
            if filled_form.is_valid():
                return self._show_preview(filled_form)
        return self._show_form(form)

    def post(self, request: HttpRequest, **arguments: Any) -> HttpResponse:
        """Show the preview, or execute the action if the form is confirmed."""
        form = self.bind_form()
        if not form.is_valid():
            return self._show_form(form, status=400)
        if not self._is_confirmed():
            return self._show_preview(form)
        # Of two submissions at the same time, only the first claims the number and acts.
        if not idempotency.claim_number(request):
            return self._answer_repeat(idempotency.EarlierResult("", ""))
        return self._execute(form)

    def _is_confirmed(self) -> bool:
        return self.request.POST.get("confirmed") == "yes" and idempotency.is_numbered(
            self.request
        )

    def bind_form(self) -> forms.Form:
        """Return the submitted form.

        A confirmed form has its passwords restored, because no page contains them.
        """
        if not form_secrets.secret_fields(self.form_class) or not self._is_confirmed():
            return self.form_class(self.request.POST)
        post_data = form_secrets.restore_secrets(self.request, self.form_class)
        form = self.form_class(self.request.POST if post_data is None else post_data)
        if post_data is None:
            form.add_error(None, _("This page has expired. Enter the passwords again."))
        return form

    def _execute(self, form: forms.Form) -> HttpResponse:
        """Run the action, record its result for repeated submissions, and redirect."""
        try:
            message = self.run(form.cleaned_data)
        except CatmqError as error:
            # The middleware makes a page of these (error_pages.py). Other errors belong to
            # the form.
            if isinstance(error, Forbidden | MetadataUnavailable):
                raise
            # After these errors nothing was done. After others the outcome is unknown, so the
            # number stays claimed.
            if isinstance(error, Invalid | Conflict | NotFound):
                idempotency.release_number(self.request)
            return self._show_error(form, error)
        response = self.respond(message)
        # The action is done. A session that is lost now must not turn it into an error.
        with suppress(DatabaseError, UpdateError):
            idempotency.record_result(
                self.request,
                message=str(message),
                url=response.get("Location", self.back()),
            )
            form_secrets.forget_secrets(self.request)
        return response

    def _answer_repeat(self, earlier: idempotency.EarlierResult) -> HttpResponse:
        """Redirect with the result of the first submission of this form."""
        if earlier.message:
            text = (
                _("This form was submitted more than once and carried out once: %s")
                % earlier.message
            )
        else:
            text = _(
                "This form was already submitted. It is still running, or its outcome is unknown."
            )
        messages.info(self.request, text)
        return HttpResponseRedirect(earlier.url or self.back())

    def respond(self, message: Text) -> HttpResponse:
        """Redirect to the page that shows the effect, so that a reload repeats nothing."""
        messages.success(self.request, str(message))
        return HttpResponseRedirect(
            pages.page_url(self.page_after) if self.page_after else self.back()
        )

    def _show_preview(self, form: forms.Form) -> HttpResponse:
        """Show the preview of a form."""
        form.is_valid()
        return self._preview_form(form, confirmed_form=form)

    def _preview_form(
        self, form: forms.Form, *, confirmed_form: forms.Form, status: int = 200
    ) -> HttpResponse:
        """Show the preview of a form. `confirmed_form` is sent back with the confirmation."""
        try:
            self._check_confirmation(form.cleaned_data)
            preview = self.preview(form.cleaned_data)
        except (Forbidden, MetadataUnavailable):
            raise
        except CatmqError as error:
            return self._show_error(form, error)
        # Nothing can be confirmed, so the form is shown again below the findings.
        if preview.blocked:
            return self._show_form(form, preview=preview, status=400)
        # The number identifies this preview: a form is executed once per preview.
        number = idempotency.new_number()
        form_secrets.keep_secrets(self.request, form, number=number)
        return self._show_form(
            confirmed_form, preview=preview, number=number, status=status
        )

    def _check_confirmation(self, fields: dict[str, Any]) -> None:
        """Raise Invalid if the typed name differs. Nothing else is revealed before that
        check.
        """
        name = self.kwargs.get("name")
        if CONFIRM_FIELD in fields and fields[CONFIRM_FIELD] != name:
            raise Invalid.field(
                CONFIRM_FIELD, _("The name does not match. Type %s.") % name
            )

    def _show_error(self, form: forms.Form, error: CatmqError) -> HttpResponse:
        """Show the form with an error, at its fields if the error names any."""
        field_errors = [
            field_error for field_error in error.errors if field_error.field in form.fields
        ]
        for field_error in field_errors:
            form.add_error(
                field_error.field, error_texts.describe_error(error, field_error.message)
            )
        if not field_errors:
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
        """Render the page with its form, and with the preview if it is not None."""
        return pages.render_page(
            self.request,
            self.template,
            self.heading(),
            status=status,
            form=form,
            # Passwords are not part of the page. form_secrets.py keeps them until the
            # confirmation.
            carried=[
                bound_field
                for bound_field in form
                if not form_secrets.is_secret(bound_field.field)
            ]
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


def _initial_value(field: forms.BoundField) -> Any:
    """Return the value that an unchanged field would send. A choice sends its first option."""
    value = field.value()
    if value is None and isinstance(field.field, forms.ChoiceField):
        return next((key for key, _label in field.field.widget.choices), None)
    return value


class Delete(Action):
    """Deletes an object after its name was typed again."""

    form_class = ConfirmForm
    danger = True


class Create(Action):
    """Creates an object, such as a topic or group, whose name is typed in the form."""

    def right_target(self) -> str:
        """Return the typed name. Without one, anybody who may manage something may open the
        form.
        """
        patterns = (
            *self.actor.rights.get(Right.MANAGE, ()),
            *self.actor.rights.get(Right.ADMIN, ()),
        )
        return self.request.POST.get("name", "").strip() or next(iter(patterns), "*")

    def describe_effect(self, fields: dict[str, Any]) -> Text:
        """Describe what would be created."""
        raise NotImplementedError

    def preview(self, fields: dict[str, Any]) -> Preview:
        """Describe what would be created.

        Raises Forbidden if the form names owners and the actor lacks a right that owners
        get.
        """
        if fields["owners"]:
            access.require_ownership(self.actor, fields["name"], what=self.object_kind)
        return Preview(effects=[self.describe_effect(fields)])
