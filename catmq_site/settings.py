"""Django's settings, all derived from metadata/config.py. Set the environment; do not edit
this file.
"""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

from django.http import request as http_request

from catmq_site import logs
from catmq_site.databases import databases
from metadata.config import config
from metadata.installation import HOME
from metadata.rules.mail import parse_server

BASE_DIR = HOME
SECRET_KEY = config.secret_key
SECRET_KEY_FALLBACKS = list(config.secret_key_fallbacks)
DEBUG = config.debug
ALLOWED_HOSTS = list(config.allowed_hosts)
# Container networks make names with an underscore, such as `catmq_broker_1`, which Django
# rejects as invalid. The name must still be in ALLOWED_HOSTS.
http_request.host_validation_re = re.compile(
    http_request.host_validation_re.pattern.replace("a-z0-9.-", "a-z0-9._-")
)
# Every link and redirect begins with the prefix, in requests, commands and mails alike.
FORCE_SCRIPT_NAME = config.path_prefix or None
ROOT_URLCONF = "catmq_site.urls"
WSGI_APPLICATION = "catmq_site.wsgi.application"

INSTALLED_APPS = [
    "catmq_site",
    "brokerapi",
    "messagestore",
    "metadata",
    "rest_framework",
    "drf_spectacular",
    "django_q",
    "axes",
    "portal.apps.ConsoleConfig",  # django.contrib.admin on our site
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "portal",  # last: it unregisters models of other apps from the admin
]

MIDDLEWARE = [
    *(["portal.auth.middleware.CookiePaths"] if config.path_prefix else []),
    "django.middleware.security.SecurityMiddleware",
    "portal.auth.middleware.Sessions",
    "django.middleware.locale.LocaleMiddleware",
    "django.middleware.common.CommonMiddleware",
    "portal.auth.form_limits.FormLimits",  # before CsrfViewMiddleware, which reads the form
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "portal.auth.middleware.SafePages",
    "axes.middleware.AxesMiddleware",  # last: it answers a refused login
]
AUTHENTICATION_BACKENDS = [
    "axes.backends.AxesStandaloneBackend",
    "django.contrib.auth.backends.ModelBackend",
]
LOGIN_URL = "login"
LOGIN_REDIRECT_URL = "overview"
LOGOUT_REDIRECT_URL = "login"
# After this many wrong passwords for the same name from the same address, logins are
# refused for 15 minutes, and after five times as many for any names
# (portal/auth/logins.py). Refused attempts are neither counted nor stored.
AXES_FAILURE_LIMIT = 8
AXES_HANDLER = "portal.auth.logins.Attempts"
AXES_RESET_COOL_OFF_ON_FAILURE_DURING_LOCKOUT = False
AXES_COOLOFF_TIME = timedelta(minutes=15)
AXES_LOCKOUT_PARAMETERS = [["username", "ip_address"]]
AXES_RESET_ON_SUCCESS = True
AXES_LOCKOUT_TEMPLATE = "portal/frame/locked_out.html"
AXES_ENABLE_ADMIN = False
AXES_VERBOSE = False
AXES_DISABLE_ACCESS_LOG = True
AXES_CLIENT_IP_CALLABLE = "portal.auth.access.address_of"

TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        # before the templates of the admin, some of which are replaced
        "DIRS": [BASE_DIR / "portal" / "templates"],
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
                "portal.auth.access.template_context",
            ],
            "libraries": {"frame": "portal.kit.frame_tags"},
        },
    }
]

DATABASES = databases(config)
DATABASE_ROUTERS = ["catmq_site.routers.Router"]
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

USE_TZ = True
TIME_ZONE = "UTC"
LANGUAGE_CODE = config.language
USE_I18N = True
LOCALE_PATHS = [BASE_DIR / "portal" / "locale"]  # before translations of other apps
LANGUAGES = (("en", "English"), ("zh-hans", "简体中文"))
LANGUAGE_COOKIE_AGE = 365 * 86_400  # s
if config.path_prefix:
    # Other sites on the host may use Django, too. A browser sends their cookies of the path
    # / after ours, and of two cookies with the same name Django takes the last.
    SESSION_COOKIE_NAME, CSRF_COOKIE_NAME = "catmq_sessionid", "catmq_csrftoken"
    LANGUAGE_COOKIE_NAME = "catmq_language"
STATIC_URL = f"{config.path_prefix}/static/"
APPEND_SLASH = False
# For forms only: the API limits bodies while it reads them (brokerapi). Each byte of a
# message body typed into a form takes up to six bytes.
DATA_UPLOAD_MAX_MEMORY_SIZE = 6 * config.max_body_bytes + (64 << 10)
FILE_UPLOAD_HANDLERS = ["portal.auth.form_limits.NoFiles"]

AUTH_PASSWORD_VALIDATORS = [
    {
        "NAME": "django.contrib.auth.password_validation.UserAttributeSimilarityValidator",
        "OPTIONS": {"user_attributes": ("username", "email")},
    },
    {
        "NAME": "django.contrib.auth.password_validation.MinimumLengthValidator",
        "OPTIONS": {"min_length": 10},
    },
    {"NAME": "django.contrib.auth.password_validation.CommonPasswordValidator"},
    {"NAME": "django.contrib.auth.password_validation.NumericPasswordValidator"},
]
SECURE_CONTENT_TYPE_NOSNIFF = True
SECURE_HSTS_SECONDS = config.hsts_days * 86_400
# s; restarts with each page
SESSION_COOKIE_AGE = config.session_idle_minutes * 60
SESSION_COOKIE_HTTPONLY = True
SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = config.broker_url.startswith("https://")
CSRF_COOKIE_HTTPONLY = True
CSRF_FAILURE_VIEW = "portal.auth.error_pages.csrf_failure"
X_FRAME_OPTIONS = "DENY"

REST_FRAMEWORK: dict[str, Any] = {
    # For the views of the schema only: endpoints check API keys and write their answers
    # themselves (brokerapi).
    "DEFAULT_AUTHENTICATION_CLASSES": [],
    "DEFAULT_PERMISSION_CLASSES": [],
    "UNAUTHENTICATED_USER": None,
    "EXCEPTION_HANDLER": "brokerapi.http.errors.exception_handler",
    "DEFAULT_SCHEMA_CLASS": "drf_spectacular.openapi.AutoSchema",
}
SPECTACULAR_SETTINGS = {
    "TITLE": "CatMQ",
    "DESCRIPTION": "The HTTP API of a CatMQ broker.",
    "VERSION": "1",
    "SERVE_INCLUDE_SCHEMA": False,
    "OAS_VERSION": "3.1.0",  # msgspec's schemas are of that kind
    "POSTPROCESSING_HOOKS": [
        "drf_spectacular.hooks.postprocess_schema_enums",
        "brokerapi.descriptions.add_descriptions",
    ],
    "SERVERS": [{"url": config.path_prefix}] if config.path_prefix else [],
}

Q_CLUSTER = {
    "name": "catmq",
    "orm": "jobs",
    "workers": 2,
    "timeout": 600,  # s; a task is cut off after it
    "retry": 900,  # s; must exceed `timeout`, or a task that still runs is started again
    "max_attempts": 3,
    "ack_failures": True,
    "save_limit": 1000,  # finished tasks kept
    # after a pause each schedule runs once, not once for each missed time
    "catch_up": False,
    "poll": 0.5,  # s between looks into the table of waiting tasks
    "label": "Jobs",
}

# Mails of alarms. EMAIL_TIMEOUT limits how long the job waits for a mail server that hangs.
_mail = parse_server(config.smtp_url) if config.smtp_url else None
EMAIL_BACKEND = f"django.core.mail.backends.{'smtp' if _mail else 'dummy'}.EmailBackend"
EMAIL_TIMEOUT = 10  # s
DEFAULT_FROM_EMAIL = config.mail_from
if _mail is not None:
    EMAIL_HOST, EMAIL_PORT = _mail.host, _mail.port
    EMAIL_HOST_USER, EMAIL_HOST_PASSWORD = _mail.username, _mail.password
    EMAIL_USE_SSL, EMAIL_USE_TLS = _mail.security == "tls", _mail.security == "starttls"

LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {
        "line": {"()": "catmq_site.logs.make_formatter"},
    },
    "filters": {"bounded": {"()": "catmq_site.logs.BoundedByCause"}},
    "handlers": {
        "stderr": {
            "class": "logging.StreamHandler",
            "formatter": "line",
            "filters": ["bounded"],
        },
    },
    # The stderr of a command belongs to its user, so it logs only warnings.
    "root": {
        "handlers": ["stderr"],
        "level": "WARNING" if config.process == "command" else "INFO",
    },
    "loggers": {
        "django.request": {"level": "ERROR"},
        # It warns of each answer to HEAD whose body it leaves out, as views of GET make.
        "gunicorn.http.wsgi": {"level": "ERROR"},
    },
}
logs.log_everything_as_json()
