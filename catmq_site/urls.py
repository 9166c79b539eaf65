"""Every URL: the HTTP API for programs, the admin for people."""

from __future__ import annotations

from django.contrib import admin
from django.contrib.staticfiles.views import serve
from django.urls import include, path, re_path
from django.views.generic import RedirectView

urlpatterns = [
    path("", RedirectView.as_view(pattern_name="admin:index")),
    path("admin/", admin.site.urls),
    # The admin's few style sheets; a production site may let its web server answer these.
    re_path(r"^static/(?P<path>.+)$", serve, {"insecure": True}),
    path("", include("brokerapi.urls")),
]

handler400 = "brokerapi.errors.handler400"
handler403 = "brokerapi.errors.handler403"
handler404 = "brokerapi.errors.handler404"
handler500 = "brokerapi.errors.handler500"
