"""Send tokens of a topic, which Java clients must name. A token is shown only when it is
created.
"""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy as lazy

from metadata.topics import send_tokens
from metadata.topics.send_tokens import SendTokenView
from portal.actions.action import Delete, Preview
from portal.auth.access import actor
from portal.kit import navigation, pages
from portal.kit.pages import Link, page_url
from portal.kit.tables import (
    Column,
    Columns,
    EmptyHint,
    Text,
    code,
    simple_table,
    text,
    timestamp,
)
from portal.views.topics.topic_actions import TopicAction


def tokens(request: HttpRequest, name: str) -> HttpResponse:
    views = send_tokens.list_tokens(topic=name, actor=actor(request))
    columns: Columns[SendTokenView] = [
        Column(_("Token"), lambda row: code(row.id)),
        Column(_("Created"), lambda row: timestamp(row.created_at_ms)),
        Column(
            _("Delete"),
            lambda row: text(_("delete"), page_url("token-delete", name, row.id)),
        ),
    ]
    hint = EmptyHint(
        _("No send tokens: every Java client that is let in may send to this topic.")
    )
    return pages.render_list(
        request,
        _("Send tokens of %s") % name,
        simple_table(columns, views, hint),
        searched=False,
        actions=[Link(_("Create a token"), page_url("token-create", name), "primary")],
        **navigation.for_topic(name, "tokens"),
    )


class CreateToken(TopicAction):
    """Creates a token and shows it, for the only time."""

    title = lazy("Create a send token for %(name)s")
    back_to = ("topic-tokens", "name")

    def preview(self, fields: dict[str, Any]) -> Preview:
        send_tokens.create(topic=self.name, actor=self.actor, dry_run=True)
        effects: list[Text] = [_("The token is shown once, on the next page.")]
        # The first token of a topic makes tokens mandatory for it.
        if not send_tokens.list_tokens(topic=self.name, actor=self.actor):
            effects.append(
                _("Messages of Java clients without a token will be refused at once.")
            )
        return Preview(effects=effects)

    def run(self, fields: dict[str, Any]) -> Text:
        # Kept on this view only, until respond() has shown it.
        view, self.secret = send_tokens.create(topic=self.name, actor=self.actor)
        return _("Send token %s was created.") % view.id

    def respond(self, message: Text) -> HttpResponse:
        """Show the token. It is in no cookie and no session, so no other page can show it."""
        return pages.render_page(
            self.request,
            "system/new_key",
            str(message),
            section=self.section,
            secret=self.secret,
            back=self.back(),
            is_token=True,
        )


class DeleteToken(Delete, TopicAction):
    title = lazy("Delete send token %(token)s")
    back_to = ("topic-tokens", "name")

    def preview(self, fields: dict[str, Any]) -> Preview:
        # Without any token, every Java client may send again.
        remaining = [
            token
            for token in send_tokens.list_tokens(topic=self.name, actor=self.actor)
            if token.id != self._token_id
        ]
        effects: list[Text] = [
            _("Messages of Java clients with this token will be refused.")
        ]
        if not remaining:
            effects = [
                _(
                    "It is the last one: every Java client that is let in may send to this topic."
                )
            ]
        return Preview(effects=effects)

    def run(self, fields: dict[str, Any]) -> Text:
        # The user types the topic's name, while the verb wants the token's id typed.
        confirmed_id = self._token_id if fields["confirm"] == self.name else None
        send_tokens.delete(
            topic=self.name, token=self._token_id, confirm=confirmed_id, actor=self.actor
        )
        return _("Send token %s was deleted.") % self._token_id

    @property
    def _token_id(self) -> str:
        return self.url_argument("token")
