"""Django's MySQL backend with a pool of idle connections per process.

A broker has some hundred threads, any of which may serve the next heartbeat. Django keeps a
connection per thread, so in the end each thread would hold a connection. Here a thread
takes a connection for the length of a request and returns it: a worker keeps a handful
open.
"""
