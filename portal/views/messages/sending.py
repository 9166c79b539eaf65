"""Sending a message by hand: a new one, or one that was sent before, as it was or edited."""

from __future__ import annotations

from typing import Any, ClassVar
from uuid import UUID

from django import forms
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy as lazy

from messagestore.engine import batch_ids
from messagestore.engine.messages import NewMessage, StoredMessage
from messagestore.inspect import browse
from messagestore.produce import operator_sends
from metadata.errors import Forbidden, Invalid
from portal.actions.action import Action, Preview
from portal.kit import bodies
from portal.kit.tables import Text


class SendForm(forms.Form):
    """A message to be sent; `batch` makes it stored once, however often the form is sent."""

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
    batch = forms.UUIDField(widget=forms.HiddenInput)

    def clean_body(self) -> str:
        """The text with the line ends that were typed: browsers send others."""
        return str(self.cleaned_data["body"]).replace("\r\n", "\n")

    def clean_headers(self) -> dict[str, str] | None:
        """Headers by name. Raises ValidationError."""
        headers = {}
        for line in filter(None, map(str.strip, self.cleaned_data["headers"].splitlines())):
            name, colon, value = line.partition(":")
            if not name.strip() or not colon:
                raise forms.ValidationError(_("Write each header as name: value."))
            headers[name.strip()] = value[1:] if value[:1].isspace() else value
        return headers or None


class Send(Action):
    form_class = SendForm
    right = "produce"
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
        what = _(
            "A message of %(bytes)d bytes will be stored in %(topic)s and delivered to every "
            "group that reads it."
        )
        shown = bodies.render_body(message.body)
        return Preview(
            effects=[what % {"bytes": len(message.body), "topic": self.topic}],
            diff=[(" ", line) for line in shown.text.splitlines()],
        )

    def run(self, fields: dict[str, Any]) -> Text:
        receipt = operator_sends.send(
            topic=self.topic, message=self._message(fields), batch_id=self._batch(fields),
            actor=self.actor,
            again=str(self.kwargs.get("message_id", "")),
        )  # fmt: skip
        return _("Stored as message %s.") % receipt.message_id

    def _batch(self, fields: dict[str, Any]) -> UUID:
        return batch_ids.check(fields["batch"])

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

    def _stored(self) -> StoredMessage:
        found = browse.by_id(
            topic=self.topic, message_id=self.url_argument("message_id"), actor=self.actor
        )
        if found.masked:
            raise Forbidden(_("You may not read the messages of %s.") % self.topic)
        return found.messages[0]

    def initial(self) -> dict[str, Any]:
        """The message as it is stored. Raises Invalid if its body is no text."""
        stored = self._stored()
        headers = "\n".join(
            f"{name}: {value}" for name, value in (stored.headers or {}).items()
        )
        return {
            "key": stored.key or "",
            "tag": stored.tag or "",
            "headers": headers,
            "body": _text(stored.body),
            "batch": batch_ids.new(),
        }

    def preview(self, fields: dict[str, Any]) -> Preview:
        before, after = self._described(self.initial()), self._described(fields)
        diff = bodies.diff_lines(before, after)
        effects = [
            _("A new message will be stored in %s. The original message is not changed.")
            % self.topic
        ]
        effects.append(_("Differences:") if diff else _("It is identical to the original."))
        return Preview(effects=effects, diff=diff)

    def _described(self, fields: dict[str, Any]) -> str:
        headers = fields["headers"]
        if isinstance(headers, dict):
            headers = "\n".join(f"{name}: {value}" for name, value in headers.items())
        return f"key: {fields['key']}\ntag: {fields['tag']}\n{headers or ''}\n\n{fields['body']}"


def _text(body: bytes) -> str:
    try:
        return body.decode()
    except UnicodeDecodeError:
        raise Invalid(
            _("The body is not text, so it cannot be edited here. Download it instead.")
        ) from None
