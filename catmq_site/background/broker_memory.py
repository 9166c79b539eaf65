"""Memory that the workers of a gunicorn master share.

The master allocates it before the first fork, and workers inherit it. When gunicorn
reloads, it reads its configuration again but not this module. Without gunicorn, the process
is its own master.
"""

from __future__ import annotations

import mmap
import uuid

from messagestore.heads import bells, shared_heads
from metadata.db import contact
from metadata.limits import lease_ends

INCARNATION = str(uuid.uuid4())  # differs after every start of the broker
STOPPING, REGISTERED = 0, 1
_flags = mmap.mmap(-1, 2)  # anonymous memory, shared by the master and all workers
CONTACT = mmap.mmap(-1, contact.SIZE)  # for metadata.db.contact
LEASES = mmap.mmap(-1, lease_ends.SIZE)  # for metadata.db.leases
HEADS = mmap.mmap(-1, shared_heads.SIZE)  # for messagestore.heads.heads, like BELLS
BELLS = bells.Bells()


def mark_stopping() -> None:
    """Let all workers know that the whole broker stops. The master calls this before it
    ends them.
    """
    _flags[STOPPING] = 1


def is_stopping() -> bool:
    return _flags[STOPPING] == 1


def mark_registered() -> None:
    """Let all workers, also those forked later, know that this broker was registered under
    its name.
    """
    _flags[REGISTERED] = 1


def is_registered() -> bool:
    return _flags[REGISTERED] == 1
