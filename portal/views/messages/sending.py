"""Sending a message by hand: a new message, or a stored message as it is or edited."""

from __future__ import annotations

from typing import Any, ClassVar

from django import forms
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy as lazy

from messagestore.engine import batch_ids
from messagestore.engine.messages import NewMessage
from messagestore.inspect import browse
from messagestore.produce import operator_sends
from metadata.errors import Forbidden, Invalid
from metadata.rules.rights import Right
from portal.actions.action import Action, Preview
from portal.kit import bodies
from portal.kit.tables import Text


class SendForm(forms.Form):
    """A message to send.

    `batch` is its batch id, so that it is stored once even if the form is sent again.
    """

    key = forms.CharField(
        label=lazy("Key"),
        required=False,
        help_text=lazy("Messages of one key keep their order."),
    )
    tag = forms.CharField(label=lazy("Tag"), required=False)
    headers = forms.CharField(
        label=lazy("Headers"),
        required=False,
        help_text=lazy("One a line, name: value"),
        widget=forms.Textarea(attrs={"rows": 3}),
    )
    body = forms.CharField(
        label=lazy("Body"),
        required=False,
        strip=False,
        widget=forms.Textarea(attrs={"rows": 14, "spellcheck": "false"}),
    )
    # A hidden field, so that a repeated form sends the same batch id.
    batch = forms.UUIDField(widget=forms.HiddenInput)

    def clean_body(self) -> str:
        """Return the body with LF line ends: browsers send CRLF, whatever was typed."""
        return str(self.cleaned_data["body"]).replace("\r\n", "\n")

    def clean_headers(self) -> dict[str, str] | None:
        """Return the headers by name. Raises ValidationError."""
        headers = {}
        for line in filter(None, map(str.strip, self.cleaned_data["headers"].splitlines())):
            name, colon, value = line.partition(":")
            if not name.strip() or not colon:
                raise forms.ValidationError(_("Write each header as name: value."))
            # Only the blank after the colon is removed: a value may begin with blanks.
            headers[name.strip()] = value[1:] if value[:1].isspace() else value
        return headers or None


class Send(Action):
    form_class = SendForm
    right = Right.PRODUCE
    section = "messages"
    button = lazy("Send")
    title = lazy("Send to %(topic)s")
    back_to: ClassVar[tuple[str, ...]] = ("topic", "topic")

    @property
    def topic(self) -> str:
        return self.url_argument("topic")

    def initial(self) -> dict[str, Any]:
        return {**super().initial(), "batch": batch_ids.new()}

    def preview(self, fields: dict[str, Any]) -> Preview:
        message = self._message(fields)
        sentence = _(
            "A message of %(bytes)d bytes will be stored in %(topic)s and delivered to every "
            "group that reads it."
        )
        body_text = bodies.render_body(message.body)
        return Preview(
            effects=[sentence % {"bytes": len(message.body), "topic": self.topic}],
            diff=[(" ", line) for line in body_text.text.splitlines()],
        )

    def run(self, fields: dict[str, Any]) -> Text:
        receipt = operator_sends.send(
            topic=self.topic, message=self._message(fields),
            batch_id=batch_ids.check(fields["batch"]), actor=self.actor,
            again=str(self.kwargs.get("message_id", "")),
        )  # fmt: skip
        return _("Stored as message %s.") % receipt.message_id

    def _message(self, fields: dict[str, Any]) -> NewMessage:
        return NewMessage(
            body=fields["body"].encode(),
            key=fields["key"] or None,
            tag=fields["tag"] or None,
            headers=fields["headers"],
        )


class Resend(Send):
    title = lazy("Send %(message_id)s again")
    back_to = ("message", "topic", "message_id")

    def initial(self) -> dict[str, Any]:
        """Return the stored message. Raises Invalid if its body is not text."""
        browsed = browse.read_message(
            topic=self.topic, message_id=self.url_argument("message_id"), actor=self.actor
        )
        # The form would show the body to a user who may not read it.
        if browsed.masked:
            raise Forbidden(_("You may not read the messages of %s.") % self.topic)
        stored = browsed.messages[0]
        headers = "\n".join(
            f"{name}: {value}" for name, value in (stored.headers or {}).items()
        )
        return {
            "key": stored.key or "",
            "tag": stored.tag or "",
            "headers": headers,
            "body": _decode_body(stored.body),
            "batch": batch_ids.new(),
        }

    def preview(self, fields: dict[str, Any]) -> Preview:
        original, edited = self._as_text(self.initial()), self._as_text(fields)
        diff = bodies.diff_lines(original, edited)
        effects = [
            _("A new message will be stored in %s. The original message is not changed.")
            % self.topic
        ]
        effects.append(_("Differences:") if diff else _("It is identical to the original."))
        return Preview(effects=effects, diff=diff)

    def _as_text(self, fields: dict[str, Any]) -> str:
        headers = fields["headers"]
        if isinstance(headers, dict):
            headers = "\n".join(f"{name}: {value}" for name, value in headers.items())
        return f"key: {fields['key']}\ntag: {fields['tag']}\n{headers or ''}\n\n{fields['body']}"


def _decode_body(body: bytes) -> str:
    try:
        return body.decode()
    except UnicodeDecodeError:
        raise Invalid(
            _("The body is not text, so it cannot be edited here. Download it instead.")
        ) from None
