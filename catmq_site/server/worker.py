"""gunicorn's threaded worker with a loop of its own: no thread waits for what a client has
yet to send.

The loop collects requests without blocking (catmq_site/server/incoming.py) and gives a
thread only those that are whole, so a client that sends slowly, or nothing, costs a file
and a kilobyte, and no thread. Bodies above SMALL_BODY_BYTES are the exception: the thread
reads them, under limits (catmq_site/server/channels.py), and so it is with answers that a
client does not take. What the kernel has taken of an answer, and the client has not, is
memory as well: such connections are few, and must move. A connection that ends is closed by
the loop when the client has closed it, too. Where too many wait, the oldest of the address
with most of them goes (catmq_site/server/crowds.py). Requests that are repeated while
nothing changes take no thread either (catmq_site/server/repeats.py).
"""

from __future__ import annotations

import errno
import resource
import select
import socket
import time
from contextlib import suppress
from typing import Any

from gunicorn import glogging
from gunicorn.http import wsgi
from gunicorn.http.errors import NoMoreData
from gunicorn.http.parser import RequestParser
from gunicorn.workers.gthread import ThreadWorker

from brokerapi.http.repeats import CAME_AT, REPEAT
from catmq_site import logs
from catmq_site.background import broker_memory
from catmq_site.server import answers, refusals
from catmq_site.server.answers import Answer
from catmq_site.server.channels import BODY, REST, Channel
from catmq_site.server.crowds import Crowd
from catmq_site.server.incoming import Connection, Unread
from catmq_site.server.repeats import MOST_BYTES, Held, Repeats

REQUEST_S = 5.0  # from the first byte of a request until a thread can begin
CLOSE_S = 2.0  # for a client to close a connection that has ended
NOTIFY_S = 0.5
TURN_S = 1.0  # the longest pause of the loop
MOST_UNFINISHED = 1024  # requests of a worker that have begun to arrive, at most
MOST_UNFINISHED_OF_ONE = 256  # of one address
# of so many threads one may wait for a slow client; half of these for those of one address
SLOW_SHARE = 8
SPARE_FILES = 512  # what is no client's connection: databases, logs, listeners
NO_ROOM = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
NOBODY = (errno.EAGAIN, errno.EWOULDBLOCK, errno.ECONNABORTED)
GONE = (errno.EPIPE, errno.ECONNRESET, errno.ENOTCONN, errno.ETIMEDOUT)
READABLE = select.EPOLLIN | select.EPOLLONESHOT
HUNG_UP = select.EPOLLRDHUP | select.EPOLLONESHOT


class Log(glogging.Logger):  # type: ignore[misc]
    """gunicorn's own log, in the form of all others."""

    def setup(self, cfg: Any) -> None:
        super().setup(cfg)
        for handler in self.error_log.handlers:
            handler.setFormatter(logs.OneLine(logs.FORMAT))
            handler.addFilter(logs.BoundedByCause())


class Worker(ThreadWorker):  # type: ignore[misc]
    alive: bool
    _accepting: bool
    notified = float("-inf")  # time.monotonic() of the last sign of life

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        slow = max(2, self.cfg.threads // SLOW_SHARE)
        self.slow: Crowd[Channel] = Crowd(
            limit_s=float("inf"), most=slow, most_of_one=slow // 2
        )
        self.capacity = self.cfg.worker_connections
        self.idle: Crowd[Connection] = Crowd(limit_s=self.cfg.keepalive, most=self.capacity)
        most = {"most": MOST_UNFINISHED, "most_of_one": MOST_UNFINISHED_OF_ONE}
        self.unfinished: Crowd[Connection] = Crowd(limit_s=REQUEST_S, **most)
        self.closing: Crowd[Connection] = Crowd(limit_s=CLOSE_S, **most)
        self.unread = Unread()
        self.held: Crowd[Connection] = Crowd(limit_s=float("inf"), most=self.capacity)
        self.repeats: Repeats[Connection] = Repeats(self)
        self.connections: dict[int, Connection] = {}  # by file
        # time.monotonic(); later than now while there is no room for more
        self.accepts_at = 0.0
        self.sent_away = refusals.SentAway(self.log, REQUEST_S)

    def init_process(self) -> None:
        self.epoll = select.epoll()
        files = resource.getrlimit(resource.RLIMIT_NOFILE)[0] - SPARE_FILES
        self.capacity = max(SPARE_FILES, min(self.capacity, files))
        super().init_process()

    def run(self) -> None:
        self.epoll.register(self.method_queue.fileno(), select.EPOLLIN)
        self.set_accept_enabled(True)
        while self.alive and self.is_parent_alive():
            self.notify()
            self.turn()
            self.set_accept_enabled(time.monotonic() >= self.accepts_at)
        self.alive = False
        self.stop_listening()
        self.idle.hurry(CLOSE_S)
        self.unread.hurry(CLOSE_S)
        until = time.monotonic() + self.cfg.graceful_timeout
        while self.connections and time.monotonic() < until:
            self.notify()
            self.turn()
        self.tpool.shutdown(wait=False)
        for connection in list(self.connections.values()):
            if connection.crowd is not None:
                self.drop(connection)
        self.method_queue.close()

    def turn(self) -> None:
        for file, _ in self.epoll.poll(self.repeats.within_s(TURN_S)):
            if file == self.method_queue.fileno():
                self.method_queue.run_callbacks(file)
            elif (connection := self.connections.get(file)) is not None:
                self.hear(connection)
            else:  # a listener, or a connection that was ended since
                for listener in self.sockets:
                    if listener.fileno() == file:
                        self.accept(listener)
        self.repeats.end_due()
        self.clear_away()

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
        """Accept nobody any more.

        The listening sockets are closed at once: gunicorn would keep them until the last
        request has finished, and clients would connect, send, and learn nothing for so
        long. Those that have connected are served; a client that is refused knows that
        nothing was done.
        """
        self.set_accept_enabled(False)
        for listener in self.sockets:
            if broker_memory.stopping():  # else the other workers take them
                self.accept_waiting(listener)
            listener.close()

    def accept_waiting(self, listener: socket.socket) -> None:
        while self.accept(listener):
            pass

    def accept(self, listener: socket.socket) -> bool:
        """Let a new connection wait for its first request; whether there was one."""
        if len(self.connections) >= self.capacity and not self.make_room():
            return False
        try:
            sock, client = listener.accept()
        except OSError as error:
            if error.errno in NO_ROOM:
                self.make_room()
            elif error.errno not in NOBODY:
                raise
            return False
        connection = Connection(sock, client, listener.getsockname())
        self.connections[sock.fileno()] = connection
        self.epoll.register(sock, 0)
        self.park(connection, self.idle)
        return True

    def make_room(self) -> bool:
        """End a connection that is not being served; if there is none, accept nobody for a
        while.
        """
        for crowd in (self.closing, self.unread, self.unfinished, self.idle, self.held):
            oldest = crowd.oldest()
            if oldest is not None:
                self.send_away(oldest)
                return True
        self.accepts_at = time.monotonic() + TURN_S
        return False

    def park(
        self, connection: Connection, crowd: Crowd[Connection], for_what: int = READABLE
    ) -> None:
        """Let a connection wait for its client in the loop. From here on it is the loop's
        alone.
        """
        connection.crowd = crowd
        surplus = crowd.add(
            connection, lambda: self.epoll.modify(connection.sock, for_what)
        )
        if surplus is not None:
            self.method_queue.defer(self.send_away, surplus)

    def hear(self, connection: Connection) -> None:
        """Take what a client has sent; a whole request goes to a thread, unless it is a
        repeated one.
        """
        crowd = connection.crowd
        if crowd is None or connection not in crowd or connection.has_ended:
            # it was found to be one too many meanwhile, or waits for its client to read
            # only
            return
        if crowd is self.held:  # it has hung up
            crowd.remove(connection)
            self.drop(connection)
            return
        try:
            whole = connection.drains() if crowd is self.closing else connection.hears()
        except BlockingIOError:
            whole = False
        except OSError:
            if crowd.remove(connection):
                self.finish(connection)
            return
        if not whole:
            self.wait_on(connection, crowd)
        elif crowd.remove(connection):
            self.take_up(connection)

    def take_up(self, connection: Connection) -> None:
        """Begin with a request that is whole: in the loop if it is a repeated one, else in
        a thread.
        """
        connection.crowd, connection.came_at = None, None
        if not self.alive or not self.repeats.begin(
            connection, connection.incoming.peek(MOST_BYTES)
        ):
            self.tpool.submit(self.serve, connection)

    def hold(self, client: Connection) -> None:
        client.came_at = time.monotonic()
        self.park(client, self.held, HUNG_UP)

    def answer_again(self, client: Connection, status: bytes, rest: bytes) -> None:
        """Answer a repeated request; who does not take so little at once is not waited for."""
        self.held.remove(client)
        answer = answers.again(status, rest)
        client.incoming.take()
        try:
            is_taken = client.sock.send(answer) == len(answer)
        except OSError:
            is_taken = False
        if is_taken:
            self.park(client, self.idle)
        else:
            self.drop(client)

    def answer_anew(self, client: Connection) -> None:
        if self.held.remove(client):
            client.crowd = None
            self.tpool.submit(self.serve, client)

    def tell_news(self, held: Held[Connection]) -> None:
        self.method_queue.defer(self.repeats.look, held)

    def wait_on(self, connection: Connection, crowd: Crowd[Connection]) -> None:
        """Let a connection wait for more; with the first byte of a request its time begins."""
        waits = crowd is self.idle or crowd is self.unread
        if waits and connection.incoming and crowd.remove(connection):
            self.park(connection, self.unfinished)
        else:
            self.epoll.modify(connection.sock, READABLE)

    def clear_away(self) -> None:
        for connection in self.idle.overdue():
            self.drop(connection)
        for connection in self.closing.overdue():
            self.finish(connection)
        for connection in self.unfinished.overdue():
            self.send_away(connection, "late", refusals.too_late(REQUEST_S))
        for connection, is_over in self.unread.due():
            if is_over:
                self.send_away(connection, "unread")
            elif connection.has_ended:
                self.finish(connection)
            else:
                self.park(connection, self.waiting_for(connection))

    def finish(self, connection: Connection) -> None:
        """Close a connection that has ended. One whose client has yet to read its answers
        is closed later, or the kernel would keep them, of any number of clients."""
        if connection.is_unread():
            connection.has_ended = True
            self.park(connection, self.unread, select.EPOLLONESHOT)
        else:
            self.drop(connection)

    def send_away(self, one: Connection, why: str = "crowded", answer: bytes = b"") -> None:
        """End a connection that takes too long, or is one too many; the log gets a line now
        and then.
        """
        with suppress(OSError):  # it is told as well as it can be
            one.sock.send(answer)
        if one.is_unread():
            one.reset()
        self.drop(one)
        self.sent_away.note(why, one.address)

    def drop(self, connection: Connection) -> None:
        # before another one can have the number
        self.connections.pop(connection.sock.fileno(), None)
        self.repeats.forget(connection)
        connection.sock.close()
        if not self.alive:
            self.method_queue.defer(lambda: None)  # the loop may wait for this one

    def serve(self, connection: Connection) -> None:
        """Answer the requests of a connection as long as they come at once: a thread's
        work.
        """
        try:
            while kept := self.answer(connection):
                again = self.alive and connection.asks_again()
                if not again or self.repeats.knows(
                    connection, connection.incoming.peek(MOST_BYTES)
                ):
                    break
        except BlockingIOError:
            pass
        except OSError:
            self.finish(connection)
            return
        if kept:
            self.give_back(connection)
            return
        try:
            connection.sock.shutdown(socket.SHUT_WR)
        except OSError:
            self.drop(connection)
        else:
            self.park(connection, self.closing)

    def give_back(self, connection: Connection) -> None:
        if connection.incoming.is_whole():
            self.method_queue.defer(self.take_up, connection)
        else:
            self.park(
                connection,
                self.unfinished if connection.incoming else self.waiting_for(connection),
            )

    def waiting_for(self, connection: Connection) -> Crowd[Connection]:
        """Return where a connection without a request waits: for the next one, or for its
        client to read.
        """
        return self.unread if connection.is_unread() else self.idle

    def answer(self, connection: Connection) -> bool:
        channel = Channel(connection.sock, connection.address, self.slow)
        parser = RequestParser(self.cfg, channel, connection.client)
        came = connection.incoming.take()
        parser.unreader.unread(came)
        try:
            request = next(parser)
            channel.phase = BODY
            answer = self.handle_request(request, connection, channel)
            channel.phase = REST
            # The rest of a body that was refused is not read here: its client may send
            # without end.
            if answer.is_last or answer.should_close() or not parser.finish_body():
                return False
            more = parser.unreader.take_buffered()
            connection.incoming.add(more)
            if (
                answer.repeat is not None
                and answer.whole
                and not more
                and not channel.has_read
            ):
                self.repeats.learn(connection, came, answer.whole, answer.repeat)
        except (NoMoreData, StopIteration, TimeoutError):
            return False
        except OSError as error:
            if error.errno not in GONE:
                self.log.exception("A socket failed")
            return False
        except Exception as error:  # noqa: BLE001 - the edge of the product: every request gets an answer
            self.refuse(error, connection, channel)
            return False
        return True

    def refuse(self, error: Exception, connection: Connection, channel: Channel) -> None:
        """Answer a request that the parser refuses, or at which the application failed
        outside its views.
        """
        if refusals.status_of(error) == 500:
            self.log.error("A request failed", exc_info=error)
        else:
            self.log.warning(
                "Refused a request from %s: %s", connection.address, refusals.said(error)
            )
        channel.phase = REST  # nobody waits for whoever does not take it
        with suppress(OSError):
            channel.sendall(refusals.answer(error))

    def handle_request(
        self, request: Any, connection: Connection, channel: Channel
    ) -> Answer:
        """Have a request answered. gunicorn's own also calls hooks, and writes a log of
        accesses, that this broker does not have."""
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
        if connection.came_at is not None:
            environ[CAME_AT], connection.came_at = connection.came_at, None
        if not self.alive:
            answer.force_close()
        try:
            self._respond(answer, environ)
        except OSError:
            raise
        except BaseException:
            if not answer.headers_sent:
                raise
            # A second answer behind the beginning of this one would be read as part of it.
            self.log.exception("An answer broke off")
            raise StopIteration from None
        answer.repeat = environ.get(REPEAT)
        return answer

    def _respond(self, answer: Answer, environ: dict[str, Any]) -> None:
        pieces = self.wsgi(environ, answer.start_response)
        try:
            for piece in pieces:
                answer.write(piece)
            answer.close()
        finally:
            if hasattr(pieces, "close"):
                pieces.close()

    def notify(self) -> None:
        """Tell the master that this worker lives, twice a second instead of at every event."""
        now = time.monotonic()
        if now - self.notified >= NOTIFY_S:
            self.notified = now
            super().notify()
