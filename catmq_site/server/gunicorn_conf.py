"""Gunicorn settings of the broker: `gunicorn --config catmq_site/server/gunicorn_conf.py
catmq_site.wsgi`.

Threads are plenty because most of them wait: a long poll occupies one. The master loads the
code and forks workers that share it in memory and serve at once; connections and threads
are made after the fork.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import logging
import os
import resource
import signal
import sys
from itertools import chain
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

os.environ["CATMQ_PROCESS"] = "broker"  # before the settings are read

from catmq_site.background import broker_memory
from metadata import private
from metadata.config import config as ours  # `config` would be a setting of gunicorn's

if TYPE_CHECKING:
    from catmq_site.background.loop_threads import LoopThreads

# gunicorn's own says nothing of starts at its level
log = logging.getLogger("catmq_site.gunicorn")
METRICS_DIR = Path(
    os.environ.setdefault("PROMETHEUS_MULTIPROC_DIR", str(ours.data_dir / "metrics"))
)
PR_SET_PDEATHSIG = 1
GARBAGE_EVERY = 20_000  # new objects; see post_worker_init()
# a thread that waits for the interpreter asks for it so often; see post_fork()
SWITCH_S = 0.05

wsgi_app = "catmq_site.wsgi:application"
bind = ours.bind
# gthread, with a loop of its own that waits for clients
worker_class = "catmq_site.server.worker.Worker"
workers = ours.workers
threads = ours.threads
# a client keeps a few connections; only busy ones need a thread
worker_connections = 10_000
backlog = 1024
keepalive = 75  # s; longer than what proxies in front usually keep, so they close first
graceful_timeout = 40  # s; more than the longest wait of a pull
timeout = 60  # s without a sign of life of a worker's main thread
preload_app = False  # load() does it, once the data directory is as it must be
control_socket_disable = True
# who may say that a client came by https
forwarded_allow_ips = ",".join(ours.trusted_proxies)
forwarder_headers = ""  # nobody may set SCRIPT_NAME or PATH_INFO
logger_class = "catmq_site.server.worker.Log"
accesslog = None
errorlog = "-"
loglevel = "warning"
proc_name = "catmq-broker"

_loops: LoopThreads | None = None


def on_starting(server: Any) -> None:
    """In the master, first: room for files and sockets, a data directory that is closed to
    others, and a clean place for the workers' metrics.

    A worker cannot tell whether SIGTERM ends it alone, so the master says when it is for
    all.
    """
    end = server.stop

    def stop(graceful: bool = True) -> None:
        broker_memory.stop()
        end(graceful)

    server.stop = stop
    private.protect_or_exit(ours.data_dir)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 65536)), hard))
    METRICS_DIR.mkdir(mode=0o700, parents=True, exist_ok=True)
    for leftover in chain(*map(METRICS_DIR.glob, ("*.db", "figures.*", "totals_*"))):
        leftover.unlink(missing_ok=True)
    load()


def load() -> None:
    """Load the application, and take it out of the garbage collector's sight: it stays.

    A full collection looks at every object and lets no other thread run meanwhile: with
    those of the application 65 ms each time, which whoever waited for this worker waited,
    too. While it loads, collections would find nothing again and again.
    """
    gc.disable()
    for name in ("catmq_site.wsgi", "catmq_site.urls", "catmq_site.background.table"):
        importlib.import_module(name)
    gc.enable()
    gc.collect()
    gc.freeze()


def post_fork(server: Any, worker: Any) -> None:
    """In the worker, first: it dies with its master, so that a restarted broker finds the
    port free.

    Threads here give the interpreter up at every database call, within about a millisecond.
    By default each that waits for it would wake every 5 ms to ask: with a hundred of them
    that costs more than their work.
    """
    sys.setswitchinterval(SWITCH_S)
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != worker.ppid:
        os._exit(0)  # the master died before the line above


def post_worker_init(worker: Any) -> None:
    """In the worker, with the application loaded: starts the loops and hears of the end
    first.

    The rows of an answer are new objects, and by default every 700 of them make Python look
    for garbage. What was loaded stays, see load(), and messages are no garbage in circles.
    """
    global _loops
    gc.set_threshold(GARBAGE_EVERY, 20, 20)
    from catmq_site.background import table
    from catmq_site.background.loop_threads import LoopThreads
    from messagestore.heads.heads import board
    from metadata.db import leases
    from metadata.db.contact import contact

    board.share(broker_memory.HEADS, broker_memory.BELLS)
    contact.share(broker_memory.CONTACT)
    leases.share(broker_memory.LEASES)
    gc.freeze()
    _loops = LoopThreads(table.loops())
    _loops.start()
    signal.signal(signal.SIGTERM, lambda number, frame: leave(worker, number, frame))
    signal.siginterrupt(signal.SIGTERM, False)
    log.info(
        "Worker %d of broker %s has started with up to %d threads",
        worker.pid,
        ours.broker_name,
        threads,
    )


def leave(worker: Any, number: int, frame: FrameType | None) -> None:
    """On SIGTERM: no pull waits any longer, requests under way are finished, then the
    worker ends.

    If the whole broker stops, nothing new begins, and the registry hears of it at once.
    What follows takes locks, so a second SIGTERM must not interrupt it: its handler would
    wait for ever.
    """
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    from brokerapi.http import draining

    if broker_memory.stopping():
        draining.stop()
    else:
        draining.stop_worker()
    if _loops is not None:
        _loops.wake("broker")
    worker.handle_exit(number, frame)


def worker_exit(server: Any, worker: Any) -> None:
    """In the worker, last: wakes whoever still waits, then stops the loops, which hold
    connections.
    """
    # see leave(); the worker may also end without one
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if _loops is None:
        return
    log.info(
        "Worker %d ends: %s",
        worker.pid,
        "the broker stops" if broker_memory.stopping() else "it alone",
    )
    from brokerapi.http import draining
    from messagestore.pool import node_pools

    if broker_memory.stopping():
        draining.stop()
    draining.stop_worker()
    _loops.stop()
    node_pools.evict_all()


def child_exit(server: Any, worker: Any) -> None:
    """In the master, for every worker that ended: its gauges no longer count."""
    from prometheus_client import multiprocess

    multiprocess.mark_process_dead(worker.pid)  # type: ignore[no-untyped-call]
