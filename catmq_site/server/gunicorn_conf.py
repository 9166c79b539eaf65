"""Gunicorn settings of the broker: `gunicorn --config catmq_site/server/gunicorn_conf.py
catmq_site.wsgi`.

There are many threads because most of them wait: a long poll occupies a thread. The master
loads the code and forks workers, which share its memory and serve at once. Connections and
threads are created after the fork.
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
from metadata.config import config as broker_config  # `config` is a gunicorn setting

if TYPE_CHECKING:
    from catmq_site.background.loop_threads import LoopThreads

# gunicorn's own logger does not log starts at its level.
log = logging.getLogger("catmq_site.gunicorn")
METRICS_DIR = Path(
    os.environ.setdefault(
        "PROMETHEUS_MULTIPROC_DIR", str(broker_config.data_dir / "metrics")
    )
)
PR_SET_PDEATHSIG = 1
GC_THRESHOLD = 20_000  # new objects between collections; see post_worker_init()
# How often a thread that waits for the interpreter asks for it; see post_fork().
SWITCH_INTERVAL_S = 0.05

wsgi_app = "catmq_site.wsgi:application"
bind = broker_config.bind
# gunicorn's gthread with an event loop of its own, which waits for clients
worker_class = "catmq_site.server.worker.Worker"
workers = broker_config.workers
threads = broker_config.threads
# A client keeps a few connections; only a connection with a request needs a thread.
worker_connections = 10_000
backlog = 1024
keepalive = 75  # s; longer than proxies in front usually keep, so they close first
graceful_timeout = 40  # s; more than the longest wait of a pull
timeout = 60  # s without a sign of life of a worker's main thread
preload_app = False  # load_application() does it, after the data directory is prepared
control_socket_disable = True
# proxies whose X-Forwarded-Proto is believed
forwarded_allow_ips = ",".join(broker_config.trusted_proxies)
forwarder_headers = ""  # no client may set SCRIPT_NAME or PATH_INFO
logger_class = "catmq_site.server.worker.Log"
accesslog = None
errorlog = "-"
loglevel = "warning"
proc_name = "catmq-broker"

_loops: LoopThreads | None = None


def on_starting(server: Any) -> None:
    """Prepare the master before it forks workers.

    It closes the data directory to others, raises the limit of open files, and removes the
    metrics of earlier workers. A worker cannot see whether SIGTERM ends only itself, so
    the master sets a shared flag before it stops all of them.
    """
    stop_arbiter = server.stop

    def stop(graceful: bool = True) -> None:
        broker_memory.mark_stopping()
        stop_arbiter(graceful)

    server.stop = stop
    private.protect_or_exit(broker_config.data_dir)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 65536)), hard))
    METRICS_DIR.mkdir(mode=0o700, parents=True, exist_ok=True)
    for leftover in chain(*map(METRICS_DIR.glob, ("*.db", "figures.*", "totals_*"))):
        leftover.unlink(missing_ok=True)
    load_application()


def load_application() -> None:
    """Load the application, and exclude its objects from garbage collection.

    A full collection visits every object and blocks all threads: with the application's
    objects 65 ms each time. While the application loads, collections would find nothing.
    """
    gc.disable()
    for name in ("catmq_site.wsgi", "catmq_site.urls", "catmq_site.background.table"):
        importlib.import_module(name)
    gc.enable()
    gc.collect()
    gc.freeze()


def post_fork(server: Any, worker: Any) -> None:
    """Prepare a new worker process.

    Threads here release the interpreter at every database call, within about a millisecond.
    By default each waiting thread would wake every 5 ms to ask for it: with a hundred
    threads that costs more than their work.
    """
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    # A worker dies with its master, so that a restarted broker finds the port free.
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != worker.ppid:
        os._exit(0)  # the master died before the line above


def post_worker_init(worker: Any) -> None:
    """Start the background loops of a worker whose application is loaded, and handle
    SIGTERM before gunicorn does.

    The rows of an answer are new objects, and by default every 700 new objects start a
    garbage collection. Messages form no cycles, so rarer collections suffice. Objects
    loaded earlier are frozen, see load_application().
    """
    global _loops
    gc.set_threshold(GC_THRESHOLD, 20, 20)
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
    signal.signal(
        signal.SIGTERM, lambda number, frame: handle_sigterm(worker, number, frame)
    )
    signal.siginterrupt(signal.SIGTERM, False)
    log.info(
        "Worker %d of broker %s has started with up to %d threads",
        worker.pid,
        broker_config.broker_name,
        threads,
    )


def handle_sigterm(worker: Any, number: int, frame: FrameType | None) -> None:
    """On SIGTERM, wake waiting pulls, let running requests finish, then end the worker.

    If the whole broker stops, it also refuses new requests and reports the stop to the
    broker registry at once. The calls below take locks, so a second SIGTERM must not
    interrupt them: its handler would wait for a lock that its own thread holds.
    """
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    from brokerapi.http import draining

    if broker_memory.is_stopping():
        draining.stop()
    else:
        draining.stop_worker()
    if _loops is not None:
        _loops.wake("broker")
    worker.handle_exit(number, frame)


def worker_exit(server: Any, worker: Any) -> None:
    """At the end of a worker, wake requests that still wait, stop the loops, and close the
    pooled connections.
    """
    # As in handle_sigterm(); the worker may also end without a signal.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if _loops is None:
        return
    log.info(
        "Worker %d ends: %s",
        worker.pid,
        "the broker stops" if broker_memory.is_stopping() else "it alone",
    )
    from brokerapi.http import draining
    from messagestore.pool import node_pools

    if broker_memory.is_stopping():
        draining.stop()
    draining.stop_worker()
    _loops.stop()
    node_pools.evict_all()


def child_exit(server: Any, worker: Any) -> None:
    """Remove the gauges of an ended worker from the metrics. Called in the master."""
    from prometheus_client import multiprocess

    multiprocess.mark_process_dead(worker.pid)  # type: ignore[no-untyped-call]
