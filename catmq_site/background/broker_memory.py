"""State that the workers of one gunicorn master share.

Made in the master before its first fork; workers inherit it. gunicorn reads its
configuration again when it reloads, but not this module. Without gunicorn the process is
its own master.
"""

from __future__ import annotations

import mmap
import uuid

from messagestore.heads import bells, shared_heads
from metadata.db import contact
from metadata.limits import lease_ends

INCARNATION = str(uuid.uuid4())  # of the broker: this life of it
STOPPING, REGISTERED = 0, 1
_flags = mmap.mmap(-1, 2)  # one memory for the master and all workers
CONTACT = mmap.mmap(-1, contact.SIZE)  # likewise, to metadata.db.contact
LEASES = mmap.mmap(-1, lease_ends.SIZE)  # likewise
# likewise; workers hand it to messagestore.heads.heads
HEADS = mmap.mmap(-1, shared_heads.SIZE)
BELLS = bells.Bells()  # likewise


def stop() -> None:
    """Tell all workers that the broker stops, not only they: the master does this before it
    ends them.
    """
    _flags[STOPPING] = 1


def stopping() -> bool:
    return _flags[STOPPING] == 1


def note_registered() -> None:
    """Tell all workers, also later ones, that the broker has had its name."""
    _flags[REGISTERED] = 1


def registered() -> bool:
    return _flags[REGISTERED] == 1
