"""HTTP for clients: `urls.py` is the index of the API; a view reads, makes one call below,
answers.

A request passes `endpoint.Endpoint` (who asks, which formats), a method of a view,
`parsers` (bytes,
counted while reading, to a typed shape), one verb of messagestore or metadata, and
`renderers`. Whatever is raised on the way becomes a problem in `errors`.
"""
