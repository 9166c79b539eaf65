"""gunicorn's threaded worker with an event loop of its own, so that no thread waits for
bytes that a client has yet to send.

The loop collects requests without blocking (catmq_site/server/connections.py) and passes
only complete requests to threads. A client that sends slowly, or nothing, costs a file and
a kilobyte, and no thread. There are two exceptions, both under the limits of
catmq_site/server/channels.py: bodies above SMALL_BODY_BYTES are read by the thread, and
answers to a client that reads slowly are sent by it.

Bytes of an answer that the kernel has buffered and the client has not read are memory, too.
The number of such connections is limited, and each must make progress. Connections over a
limit are evicted, the oldest of the address with most connections first
(catmq_site/server/wait_lists.py). Requests that are repeated while nothing changes take no
thread either (catmq_site/server/repeats.py).

A connection is either in exactly one wait list, and then only the loop may touch it, or a
thread serves it. epoll is one-shot, so nothing is reported about a connection while a
thread has it.
"""

from __future__ import annotations

import errno
import resource
import select
import socket
import time
from contextlib import suppress
from http import HTTPStatus
from typing import Any

from gunicorn import glogging
from gunicorn.http import wsgi
from gunicorn.http.errors import LimitRequestHeaders, NoMoreData
from gunicorn.http.parser import RequestParser
from gunicorn.workers.gthread import ThreadWorker

from brokerapi.http.repeats import CAME_AT, REPEAT
from catmq_site import logs
from catmq_site.background import broker_memory
from catmq_site.server import answers, refusals
from catmq_site.server.answers import Answer
from catmq_site.server.channels import BODY, NO_WAIT, Channel
from catmq_site.server.connections import MAX_HEAD_BYTES, Connection, UnreadAnswers
from catmq_site.server.known_heads import KnownHeads
from catmq_site.server.repeats import MAX_REQUEST_BYTES, HeldRequest, RepeatedRequests
from catmq_site.server.wait_lists import WaitList

REQUEST_S = 5.0  # from the first byte of a request until it is complete
CLOSE_S = 2.0  # for a client to close its side after the last answer
NOTIFY_EVERY_S = 0.5
MAX_POLL_S = 1.0  # limits of time are checked at least this often
MAX_UNFINISHED = 1024  # requests per worker that have arrived in part
MAX_UNFINISHED_PER_ADDRESS = 256  # … per address
# One thread in SLOW_SHARE may wait for slow clients, and half of these threads for the
# clients of one address.
SLOW_SHARE = 8
SPARE_FILES = 512  # files that are not client connections: databases, logs, listeners
# Errors of accept() that a closed connection may cure.
OUT_OF_RESOURCES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
# Errors of accept(): no connection waits, another worker took it, or its client aborted it.
NOTHING_TO_ACCEPT = (errno.EAGAIN, errno.EWOULDBLOCK, errno.ECONNABORTED)
CONNECTION_LOST = (errno.EPIPE, errno.ECONNRESET, errno.ENOTCONN, errno.ETIMEDOUT)
READABLE = select.EPOLLIN | select.EPOLLONESHOT
HUNG_UP = select.EPOLLRDHUP | select.EPOLLONESHOT


class Log(glogging.Logger):  # type: ignore[misc]
    """gunicorn's log in the format of all other logs."""

    def setup(self, cfg: Any) -> None:
        super().setup(cfg)
        for handler in self.error_log.handlers:
            handler.setFormatter(logs.make_formatter())
            handler.addFilter(logs.BoundedByCause())


class Worker(ThreadWorker):  # type: ignore[misc]
    """A worker process: an event loop for connections, and threads that answer requests.

    RepeatedRequests calls the methods `hold_client`, `send_remembered_answer`,
    `answer_in_full` and `defer_news_check`.
    """

    alive: bool
    _accepting: bool
    notified = float("-inf")  # time.monotonic() of the last report to the master

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        max_slow_threads = max(2, self.cfg.threads // SLOW_SHARE)
        # Threads that wait for a slow client.
        self.slow: WaitList[Channel] = WaitList(
            limit_s=float("inf"),
            max_size=max_slow_threads,
            max_per_address=max_slow_threads // 2,
        )
        self.capacity = self.cfg.worker_connections
        # Connections without a request, none of whose bytes have arrived.
        self.idle: WaitList[Connection] = WaitList(
            limit_s=self.cfg.keepalive, max_size=self.capacity
        )
        limits = {"max_size": MAX_UNFINISHED, "max_per_address": MAX_UNFINISHED_PER_ADDRESS}
        # Connections with a part of a request.
        self.unfinished: WaitList[Connection] = WaitList(limit_s=REQUEST_S, **limits)
        # Half-closed connections whose clients have yet to close their side.
        self.closing: WaitList[Connection] = WaitList(limit_s=CLOSE_S, **limits)
        # Connections whose clients have yet to read their answers.
        self.unread = UnreadAnswers()
        # Connections whose repeated request waits for news or for the end of its time.
        self.held: WaitList[Connection] = WaitList(
            limit_s=float("inf"), max_size=self.capacity
        )
        self.repeats: RepeatedRequests[Connection] = RepeatedRequests(self)
        self.known_heads = KnownHeads()
        self.connections: dict[int, Connection] = {}  # by file descriptor
        # time.monotonic(); in the future while there is no room for more connections
        self.accepts_at = 0.0
        self.eviction_log = refusals.EvictionLog(self.log, REQUEST_S)

    def init_process(self) -> None:
        self.epoll = select.epoll()
        max_files = resource.getrlimit(resource.RLIMIT_NOFILE)[0] - SPARE_FILES
        self.capacity = max(SPARE_FILES, min(self.capacity, max_files))
        super().init_process()

    def run(self) -> None:
        self.epoll.register(self.method_queue.fileno(), select.EPOLLIN)
        self.set_accept_enabled(True)
        while self.alive and self.is_parent_alive():
            self.notify()
            self.handle_events()
            self.set_accept_enabled(time.monotonic() >= self.accepts_at)
        self.alive = False
        self.stop_listening()
        # A client may be sending its next request: idle connections get CLOSE_S more.
        self.idle.shorten_limit(CLOSE_S)
        self.unread.shorten_limit(CLOSE_S)
        stop_by = time.monotonic() + self.cfg.graceful_timeout
        while self.connections and time.monotonic() < stop_by:
            self.notify()
            self.handle_events()
        # Without waiting: all connections are closed, or graceful_timeout has passed.
        self.tpool.shutdown(wait=False)
        for connection in list(self.connections.values()):
            if connection.wait_list is not None:
                self.close_connection(connection)
        self.method_queue.close()

    def handle_events(self) -> None:
        for file, _ in self.epoll.poll(self.repeats.seconds_to_next_due(MAX_POLL_S)):
            if file == self.method_queue.fileno():
                self.method_queue.run_callbacks(file)
            elif (connection := self.connections.get(file)) is not None:
                self.read_from_client(connection)
            else:  # a listener, or a connection that was closed since poll() returned
                for listener in self.sockets:
                    if listener.fileno() == file:
                        self.accept(listener)
        self.repeats.answer_due()
        self.end_overdue()

    def set_accept_enabled(self, enabled: bool) -> None:
        if enabled == self._accepting:
            return
        self._accepting = enabled
        for listener in self.sockets:
            if enabled:
                listener.setblocking(False)
                self.epoll.register(listener, select.EPOLLIN)
            else:
                self.epoll.unregister(listener)

    def stop_listening(self) -> None:
        """Stop accepting connections.

        The listening sockets are closed at once. gunicorn would keep them open until the
        last request has finished, and clients would connect and send without an answer for
        that long. Connections that were accepted are served; a client whose connection is
        refused knows that nothing was done.
        """
        self.set_accept_enabled(False)
        for listener in self.sockets:
            # Accept the backlog, unless other workers will.
            while broker_memory.is_stopping() and self.accept(listener):
                pass
            listener.close()

    def accept(self, listener: socket.socket) -> bool:
        """Accept a connection and park it until its first request. Return False if no
        connection waits, or there is no room for one.
        """
        if len(self.connections) >= self.capacity and not self.make_room():
            return False
        try:
            sock, client = listener.accept()
        except OSError as error:
            if error.errno in OUT_OF_RESOURCES:
                self.make_room()
            elif error.errno not in NOTHING_TO_ACCEPT:
                raise
            return False
        connection = Connection(sock, client, listener.getsockname())
        self.connections[sock.fileno()] = connection
        # Registered without events; park() arms it.
        self.epoll.register(sock, 0)
        self.park(connection, self.idle)
        return True

    def make_room(self) -> bool:
        """Evict a connection that is not being served. If there is none, stop accepting for
        a moment and return False.
        """
        # In the order of what closing a connection costs its client, least first.
        for wait_list in (self.closing, self.unread, self.unfinished, self.idle, self.held):
            evicted = wait_list.pop_oldest()
            if evicted is not None:
                self.evict(evicted)
                return True
        self.accepts_at = time.monotonic() + MAX_POLL_S
        return False

    def park(
        self,
        connection: Connection,
        wait_list: WaitList[Connection],
        events: int = READABLE,
    ) -> None:
        """Put a connection on a wait list and arm epoll for it. The calling thread must not
        touch it afterwards.
        """
        # Set before epoll is armed, because the loop may read it at once.
        connection.wait_list = wait_list
        evicted = wait_list.add(
            connection, lambda: self.epoll.modify(connection.sock, events)
        )
        if evicted is not None:
            # park() may run in a thread, and the evicted connection belongs to the loop.
            self.method_queue.defer(self.evict, evicted)

    def read_from_client(self, connection: Connection) -> None:
        """Read the bytes of a client. Start its request if that is complete now."""
        wait_list = connection.wait_list
        if wait_list is None or connection not in wait_list or connection.has_ended:
            # The connection was evicted since poll() returned, or gets no further request and
            # only waits until its client has read the last answer.
            return
        if wait_list is self.held:  # epoll reports only a hang-up of a held connection
            wait_list.remove(connection)
            self.close_connection(connection)
            return
        try:
            is_complete = (
                connection.discard() if wait_list is self.closing else connection.receive()
            )
        except BlockingIOError:
            is_complete = False
        except OSError:
            if wait_list.remove(connection):
                self.close_when_read(connection)
            return
        if is_complete:
            if wait_list.remove(connection):
                self.start_request(connection)
            return
        # Wait for more bytes. The time limit of a request starts with its first byte, so a
        # connection moves to `unfinished` then. One that is in `unfinished` or `closing` stays
        # there with its deadline.
        is_between_requests = wait_list is self.idle or wait_list is self.unread
        if is_between_requests and connection.buffer and wait_list.remove(connection):
            self.park(connection, self.unfinished)
        else:
            self.epoll.modify(connection.sock, READABLE)

    def start_request(self, connection: Connection) -> None:
        """Start a complete request: in the loop if it repeats a remembered one, otherwise in
        a thread.
        """
        connection.wait_list, connection.held_since = None, None
        if not self.alive or not self.repeats.begin_repeat(
            connection, connection.buffer.peek(MAX_REQUEST_BYTES)
        ):
            self.tpool.submit(self.serve, connection)

    def hold_client(self, connection: Connection) -> None:
        connection.held_since = time.monotonic()
        self.park(connection, self.held, HUNG_UP)

    def send_remembered_answer(
        self, connection: Connection, before_date: bytes, after_date: bytes
    ) -> None:
        """Answer a repeated request from the loop, which does not wait for a client that
        reads slowly.
        """
        self.held.remove(connection)
        answer = answers.build_repeated_answer(before_date, after_date)
        connection.buffer.take()
        try:
            is_sent = connection.sock.send(answer) == len(answer)
        except OSError:
            is_sent = False
        if is_sent:
            self.park(connection, self.idle)
        else:
            self.close_connection(connection)

    def answer_in_full(self, connection: Connection) -> None:
        if self.held.remove(connection):
            connection.wait_list = None
            self.tpool.submit(self.serve, connection)

    def defer_news_check(self, request: HeldRequest[Connection]) -> None:
        self.method_queue.defer(self.repeats.check_news, request)

    def end_overdue(self) -> None:
        for connection in self.idle.pop_overdue():
            self.close_connection(connection)
        for connection in self.closing.pop_overdue():
            self.close_when_read(connection)
        for connection in self.unfinished.pop_overdue():
            self.evict(connection, "late", refusals.build_timeout_answer(REQUEST_S))
        for connection, has_failed in self.unread.pop_due():
            if has_failed:
                self.evict(connection, "unread")
            elif connection.has_ended:
                self.close_when_read(connection)
            else:
                self.park(connection, self.resting_list(connection))

    def close_when_read(self, connection: Connection) -> None:
        """Close a connection whose last answer is complete, but not before the client has
        read it.

        Until then the connection counts as unread; otherwise the kernel would keep answers
        of any number of clients.
        """
        if connection.has_unread_answers():
            connection.has_ended = True
            self.park(connection, self.unread, select.EPOLLONESHOT)
        else:
            self.close_connection(connection)

    def evict(
        self, connection: Connection, cause: str = "crowded", answer: bytes = b""
    ) -> None:
        """Close a connection that takes too long or exceeds a limit, and count it for the
        log.
        """
        with suppress(OSError):  # best effort: the client may have disconnected
            connection.sock.send(answer)
        if connection.has_unread_answers():
            connection.reset()
        self.close_connection(connection)
        self.eviction_log.count(cause, connection.address)

    def close_connection(self, connection: Connection) -> None:
        # Before close(): a new connection may get the same file descriptor.
        self.connections.pop(connection.sock.fileno(), None)
        self.repeats.release_client(connection)
        connection.sock.close()
        if not self.alive:
            self.method_queue.defer(lambda: None)  # wakes run(), which may wait for this

    def serve(self, connection: Connection) -> None:
        """Answer a request, and the next ones of its connection as long as they follow at
        once. Then hand the connection back to the loop. Runs in a thread.
        """
        try:
            while keep_alive := self.answer(connection):
                next_arrived = self.alive and connection.wait_for_next_request()
                if not next_arrived or self.repeats.remembers(
                    connection, connection.buffer.peek(MAX_REQUEST_BYTES)
                ):
                    break
        except BlockingIOError:
            pass
        except OSError:
            self.close_when_read(connection)
            return
        if not keep_alive:
            try:
                # Half-close, then read until the client closes: closing with unread input
                # would send RST, and the client might lose the end of its answer.
                connection.sock.shutdown(socket.SHUT_WR)
            except OSError:
                self.close_connection(connection)
            else:
                self.park(connection, self.closing)
        elif connection.buffer.is_whole():
            # The next request is complete: it repeats a remembered one, so the loop may answer
            # it without this thread, or the worker stops.
            self.method_queue.defer(self.start_request, connection)
        elif connection.buffer:
            self.park(connection, self.unfinished)
        else:
            self.park(connection, self.resting_list(connection))

    def resting_list(self, connection: Connection) -> WaitList[Connection]:
        """Return the wait list for a connection between two requests: `unread` while its
        client has answers to read, otherwise `idle`.
        """
        return self.unread if connection.has_unread_answers() else self.idle

    def answer(self, connection: Connection) -> bool:
        """Read, answer and finish one request. Return False if the connection must end with
        it.
        """
        channel = Channel(connection.sock, connection.address, self.slow)
        head_bytes = connection.buffer.head_bytes
        # All bytes received so far, including those of a next request in a pipeline.
        request_bytes = connection.buffer.take()
        known_head = self.known_heads.find(connection, request_bytes[:head_bytes])
        try:
            # Refused also if it arrived at once, so that its parts make no difference.
            if head_bytes > MAX_HEAD_BYTES:
                raise LimitRequestHeaders(
                    f"the headers have more than {MAX_HEAD_BYTES} bytes"
                )
            end = head_bytes + (known_head.body_bytes if known_head is not None else 0)
            if known_head is not None and len(request_bytes) >= end:
                body, next_bytes = request_bytes[head_bytes:end], request_bytes[end:]
                channel.phase = BODY
                answer = self.call_application(
                    known_head.environ(body, connection, channel),
                    Answer(known_head, channel, self.cfg),
                    connection,
                )
                channel.phase = NO_WAIT
                if answer.is_last or answer.should_close():
                    return False
            else:
                parser = RequestParser(self.cfg, channel, connection.client)
                parser.unreader.unread(request_bytes)
                request = next(parser)
                channel.phase = BODY
                # Empty if the parser ended the head elsewhere, which no valid head does.
                unparsed_bytes = len(parser.unreader.buf.getbuffer())
                head = request_bytes[: len(request_bytes) - unparsed_bytes]
                answer = self.handle_request(
                    request, connection, channel, head if len(head) == head_bytes else b""
                )
                channel.phase = NO_WAIT
                # The rest of a refused body is not read: its client may send without end.
                if answer.is_last or answer.should_close() or not parser.finish_body():
                    return False
                next_bytes = parser.unreader.take_buffered()
            connection.buffer.add(next_bytes)
            # Only a request that the loop collected by itself, without bytes of the next one,
            # is remembered: otherwise its end could be taken for the start of another.
            if (
                answer.repeat is not None
                and answer.sent_bytes
                and not next_bytes
                and not channel.has_read
            ):
                self.repeats.remember(
                    connection, request_bytes, answer.sent_bytes, answer.repeat
                )
        except (NoMoreData, StopIteration, TimeoutError):
            return False
        except OSError as error:
            if error.errno not in CONNECTION_LOST:
                self.log.exception("A socket failed")
            return False
        except Exception as error:  # noqa: BLE001 - the outermost handler: every request gets an answer
            self.refuse(error, connection, channel)
            return False
        return True

    def refuse(self, error: Exception, connection: Connection, channel: Channel) -> None:
        """Answer a request that the parser refuses, or that failed in the application
        outside its views.
        """
        if refusals.http_status(error) == 500:
            self.log.error("A request failed", exc_info=error)
        else:
            self.log.warning(
                "Refused a request from %s: %s",
                connection.address,
                refusals.shorten_text(error),
            )
        channel.phase = NO_WAIT  # no thread waits for a client that does not read a refusal
        with suppress(OSError):
            channel.sendall(refusals.build_refusal(error))

    def handle_request(
        self, request: Any, connection: Connection, channel: Channel, head: bytes
    ) -> Answer:
        """Answer a request that the parser has read from `head` and the bytes after it, and
        remember its head.
        """
        answer: Answer
        answer, environ = wsgi.create(
            request,
            channel,
            connection.client,
            connection.server,
            self.cfg,
            response_class=Answer,
        )
        environ["wsgi.multithread"] = True
        as_parsed = environ.copy()  # the application changes the environ
        self.call_application(environ, answer, connection)
        # Only heads of requests that succeeded: a client without a key must not displace
        # those of others.
        if answer.status_code < HTTPStatus.BAD_REQUEST:
            self.known_heads.remember(connection, head, request, as_parsed)
        return answer

    def call_application(
        self, environ: dict[str, Any], answer: Answer, connection: Connection
    ) -> Answer:
        """Call the application and send its answer.

        Unlike gunicorn it calls no hooks and writes no access log: that is a part of the
        application (catmq_site/request_log.py).
        """
        # The time for which the loop held the request counts as a part of the view's wait.
        if connection.held_since is not None:
            environ[CAME_AT], connection.held_since = connection.held_since, None
        if not self.alive:
            answer.force_close()
        try:
            chunks = self.wsgi(environ, answer.start_response)
            try:
                for chunk in chunks:
                    answer.write(chunk)
                answer.close()
            finally:
                if hasattr(chunks, "close"):
                    chunks.close()
        except OSError:
            raise
        except BaseException:
            if not answer.headers_sent:
                raise
            # No error answer: the client would read it as a part of the one that broke off.
            self.log.exception("An answer broke off")
            raise StopIteration from None
        answer.repeat = environ.get(REPEAT)
        return answer

    def notify(self) -> None:
        """Report to gunicorn's master that this worker lives, twice a second instead of at
        every event.
        """
        now = time.monotonic()
        if now - self.notified >= NOTIFY_EVERY_S:
            self.notified = now
            super().notify()
