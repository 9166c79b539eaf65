#!/usr/bin/env python3
"""Runs a management command: `manage.py help` lists them, `manage.py help COMMAND` explains
one.
"""

from __future__ import annotations

import os
import sys

from django.core.management import execute_from_command_line

from metadata import private
from metadata.config import config

if __name__ == "__main__":
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "catmq_site.settings")
    private.protect_or_exit(config.data_dir)
    execute_from_command_line(sys.argv)
