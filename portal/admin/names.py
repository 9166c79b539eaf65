"""Names in the admin in the reader's language: models know none, so their names are wrapped
here.

Titles, breadcrumbs, column headings, filters and labels are all taken from the model's own
names. Migrations look at what a model was defined with, which stays as it is.
"""

from __future__ import annotations

from django.apps import apps
from django.contrib import admin
from django.utils.translation import gettext_lazy


def translate() -> None:
    """Makes the names of every model that has a page here, and of its columns, speak their
    language.
    """
    for model in admin.site._registry:
        meta = model._meta
        if meta.app_label == "auth":  # Django's own names are translated
            continue
        meta.verbose_name = gettext_lazy(str(meta.verbose_name))
        meta.verbose_name_plural = gettext_lazy(str(meta.verbose_name_plural))
        for field in meta.fields:
            field.verbose_name = gettext_lazy(str(field.verbose_name))
            if field.choices:
                field.choices = [
                    (value, gettext_lazy(str(label))) for value, label in field.flatchoices
                ]
    for config in apps.get_app_configs():
        if config.label in ("metadata", "django_q"):
            config.verbose_name = gettext_lazy(str(config.verbose_name))
