"""HTTP for clients. `urls.py` is the index of the API.

A request passes `endpoint.Endpoint` (API key, formats), a method of a view, `parsers`
(bytes, counted while reading, to a typed shape), a single function of messagestore or
metadata, and `renderers`. `errors` turns any exception into a problem.
"""
