"""What `django-admin startproject` writes, and the lines that tasks and messages need."""

import os
from pathlib import Path
from urllib.parse import urlsplit

BASE_DIR = Path(__file__).resolve().parent.parent

SECRET_KEY = "for development only"
DEBUG = True
ALLOWED_HOSTS: list[str] = []

INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "django_tasks",  # before Django 6.0
    "catmq_client.contrib.django_outbox",
    "catmq_client.contrib.django_tasks",
    "orders",
]

MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
]

ROOT_URLCONF = "shop.urls"
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ],
        },
    },
]

DATABASES = {
    "default": {"ENGINE": "django.db.backends.sqlite3", "NAME": BASE_DIR / "db.sqlite3"}
}
# Two processes write to SQLite: who begins to write waits for the other one.
DATABASES["default"]["OPTIONS"] = {"transaction_mode": "IMMEDIATE", "timeout": 20}
if url := os.environ.get("SHOP_DATABASE_URL"):  # mysql://user:password@host:port/name
    place = urlsplit(url)
    DATABASES["default"] = {
        "ENGINE": "django.db.backends.mysql",
        "NAME": place.path[1:],
        "HOST": place.hostname,
        "PORT": place.port,
        "USER": place.username,
        "PASSWORD": place.password,
    }

LANGUAGE_CODE = "en-us"
TIME_ZONE = "UTC"
USE_TZ = True
STATIC_URL = "static/"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

# CatMQ. Brokers and key: CATMQ_URL and CATMQ_API_KEY of the environment.
TASKS = {
    "default": {
        "BACKEND": "catmq_client.contrib.django_tasks.CatmqBackend",
        "QUEUES": ["default", "mails"],
        "OPTIONS": {
            "SCHEDULES": {"totals": {"task": "orders.tasks.add_up", "every": 5}},
        },
    }
}
EMAIL_BACKEND = "django.core.mail.backends.console.EmailBackend"
LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "handlers": {"console": {"class": "logging.StreamHandler"}},
    "loggers": {"catmq": {"handlers": ["console"], "level": "INFO"}},
}
