"""Filters of the admin: those it offers, and no other, which would tell what no page shows."""

from __future__ import annotations

import pytest
from django.contrib import admin
from django.contrib.auth import get_user_model
from django.test import Client

from tests.support.forms import browser

pytestmark = pytest.mark.one_engine


@pytest.fixture
def ada(metadata_db: None) -> Client:
    """An administrator's browser."""
    return browser("ada", administrator=True)


def test_a_hash_is_not_told_letter_by_letter(ada: Client) -> None:
    first = get_user_model().objects.get(username="ada").password[:1]
    for guess in (first, "~"):
        assert ada.get(f"/admin/auth/user/?password__startswith={guess}").status_code == 400


def test_no_list_can_be_filtered_by_a_column_that_it_does_not_offer(ada: Client) -> None:
    told = []
    # The client's apps stand in a user's project, and their pages show every column.
    of_the_server = [
        one
        for one in admin.site._registry.items()
        if not one[0].__module__.startswith("catmq_client.")
    ]
    for model, page in of_the_server:
        offered = {one for one in page.list_filter if isinstance(one, str)}
        for field in model._meta.fields:
            lookups = (
                f"{field.name}__contains=a",
                f"{field.name}__startswith=a",
                f"{field.name}__isnull=0",
            )
            asked = [] if field.name in offered else lookups
            url = f"/admin/{model._meta.app_label}/{model._meta.model_name}/"
            told += [
                f"{url}?{one}"
                for one in asked
                if ada.get(f"{url}?{one}").status_code != 400
            ]
    assert told == []


def test_the_filters_that_are_offered_work(ada: Client) -> None:
    assert ada.get("/admin/metadata/topic/?kind__exact=normal").status_code == 200
    assert ada.get("/admin/metadata/nodesize/?node__id__exact=1").status_code == 200
