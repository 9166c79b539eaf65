"""The WSGI application that gunicorn serves: a lean handler for the API, all of Django for
the portal.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING

from django.core.wsgi import get_wsgi_application

from brokerapi.http.handler import PATHS, ApiHandler
from metadata.config import config
from metadata.rules.membership import addresses
from metadata.rules.path_prefix import without_prefix

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "catmq_site.settings")
portal_app = get_wsgi_application()
api_app = ApiHandler()

from catmq_site.jobs import tasks  # noqa: E402  its models need the application that was loaded above
from catmq_site.request_log import RequestLog  # noqa: E402  as above

tasks.connect()


_TRUSTED_PROXIES = addresses.parse_networks(config.trusted_proxies)
_PATH_PREFIX = config.path_prefix


def answer(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
    """Answer a request. Views see the client's address instead of a proxy's, and no path
    prefix.
    """
    if _TRUSTED_PROXIES and "HTTP_X_FORWARDED_FOR" in environ:
        environ["REMOTE_ADDR"] = addresses.client_address(
            environ.get("REMOTE_ADDR", ""),
            environ["HTTP_X_FORWARDED_FOR"],
            _TRUSTED_PROXIES,
        )
    if _PATH_PREFIX:  # FORCE_SCRIPT_NAME adds it to links and redirects
        environ["PATH_INFO"] = without_prefix(environ["PATH_INFO"], _PATH_PREFIX)
    handler = api_app if environ["PATH_INFO"].startswith(PATHS) else portal_app
    return handler(environ, start_response)


application: WSGIApplication = answer
if config.access_log != "off" or config.log_format == "json":
    application = RequestLog(answer, access_log=config.access_log, path_prefix=_PATH_PREFIX)
