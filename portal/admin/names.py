"""Translated names of models, columns and choices for the admin site.

Titles, breadcrumbs, headings and filters come from the names of models. Models themselves
are untranslated, so their names are wrapped here. Migrations compare the original
definitions, which stay as they are.
"""

from __future__ import annotations

from django.apps import apps
from django.contrib import admin
from django.utils.translation import gettext_lazy


def translate_names() -> None:
    """Replace the names of all registered models and their columns by translatable names."""
    for model in admin.site._registry:
        meta = model._meta
        if meta.app_label == "auth":  # Django's own names are translated
            continue
        meta.verbose_name = gettext_lazy(str(meta.verbose_name))
        meta.verbose_name_plural = gettext_lazy(str(meta.verbose_name_plural))
        for field in meta.fields:
            # Lazy, because the language differs between requests.
            field.verbose_name = gettext_lazy(str(field.verbose_name))
            if field.choices:
                field.choices = [
                    (value, gettext_lazy(str(label))) for value, label in field.flatchoices
                ]
    for config in apps.get_app_configs():
        if config.label in ("metadata", "django_q"):
            config.verbose_name = gettext_lazy(str(config.verbose_name))
