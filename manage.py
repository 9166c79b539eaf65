#!/usr/bin/env python3
"""Runs a management command: `manage.py help` lists them, `manage.py help COMMAND` explains one."""

from __future__ import annotations

import os
import sys

from django.core.management import execute_from_command_line

if __name__ == "__main__":
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "catmq_site.settings")
    execute_from_command_line(sys.argv)
