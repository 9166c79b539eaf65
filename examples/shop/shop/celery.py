"""Celery on the brokers of the tasks: `celery -A shop worker`."""

import os
from urllib.parse import urlsplit

from celery import Celery

import catmq_client.contrib.kombu  # noqa: F401 - registers catmq:// and catmqs://

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "shop.settings")

place = urlsplit(os.environ.get("CATMQ_URL", "http://127.0.0.1:8000").partition(",")[0])
scheme = "catmqs" if place.scheme == "https" else "catmq"
# the key is CATMQ_API_KEY
app = Celery("shop", broker=f"{scheme}://{place.netloc}/shop-jobs")
app.conf.broker_connection_retry_on_startup = True
app.conf.worker_hijack_root_logger = False
app.autodiscover_tasks(["orders"], related_name="jobs")
