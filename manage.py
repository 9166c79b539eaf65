#!/usr/bin/env python3
"""Runs a management command of a checkout: `manage.py help` lists them, `manage.py help
COMMAND` explains one. An installed server has the same commands in `catmq-server`.
"""

from __future__ import annotations

import sys

from catmq_site.program import main

if __name__ == "__main__":
    sys.exit(main())
