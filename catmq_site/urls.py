"""All URLs: the HTTP API, the portal and the admin."""

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

handler400 = "catmq_site.error_views.handler400"
handler403 = "catmq_site.error_views.handler403"
handler404 = "catmq_site.error_views.handler404"
handler500 = "catmq_site.error_views.handler500"
