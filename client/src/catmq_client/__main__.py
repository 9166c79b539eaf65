"""The command `catmq` as `python -m catmq_client`, where scripts are not on the PATH."""

from __future__ import annotations

import sys

from catmq_client.cli import main

sys.exit(main())
