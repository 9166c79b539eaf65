"""The limit of single sends: a DRF view as one would write it; it parses the same body and
stores nothing.
"""

from __future__ import annotations

from django.conf import settings

settings.configure(
    SECRET_KEY="bench",  # nothing is signed
    ALLOWED_HOSTS=["127.0.0.1"],
    ROOT_URLCONF=__name__,
    INSTALLED_APPS=["rest_framework"],
    MIDDLEWARE=[],
    USE_TZ=True,
    REST_FRAMEWORK={
        "DEFAULT_AUTHENTICATION_CLASSES": [],
        "DEFAULT_PERMISSION_CLASSES": [],
        "DEFAULT_PARSER_CLASSES": ["rest_framework.parsers.JSONParser"],
        "DEFAULT_RENDERER_CLASSES": ["rest_framework.renderers.JSONRenderer"],
        "UNAUTHENTICATED_USER": None,
    },
)

from django.core.wsgi import get_wsgi_application  # noqa: E402

application = get_wsgi_application()

from django.urls import path  # noqa: E402
from rest_framework.request import Request  # noqa: E402
from rest_framework.response import Response  # noqa: E402
from rest_framework.views import APIView  # noqa: E402


class Parse(APIView):
    """Answers as if it had stored the messages."""

    def post(self, request: Request, topic: str) -> Response:
        """A made-up receipt for each message."""
        results = [
            {"queue": 1, "offset": 1, "message_id": "1-1"} for _ in request.data["messages"]
        ]
        return Response({"results": results})


urlpatterns = [path("api/v1/topics/<str:topic>/messages", Parse.as_view())]
