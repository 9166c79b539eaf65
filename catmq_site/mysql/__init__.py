"""Django's MySQL backend with a pool of idle connections per process.

A broker has some hundred threads, any of which may serve the next heartbeat. Django keeps a
connection per thread, so each would end up holding one. Here a thread has a connection for
the length of a request and gives it back: a worker keeps a handful open.
"""
