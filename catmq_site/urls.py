"""Every URL: the HTTP API for programs, the portal and the admin for people."""

from __future__ import annotations

from django.contrib import admin
from django.contrib.staticfiles.views import serve
from django.urls import include, path, re_path

urlpatterns = [
    path("admin/", admin.site.urls),
    # A few style sheets and scripts; a production site may let its web server answer these.
    re_path(r"^static/(?P<path>.+)$", serve, {"insecure": True}),
    path("", include("brokerapi.urls")),
    path("", include("portal.urls")),
]

handler400 = "catmq_site.faults.handler400"
handler403 = "catmq_site.faults.handler403"
handler404 = "catmq_site.faults.handler404"
handler500 = "catmq_site.faults.handler500"
