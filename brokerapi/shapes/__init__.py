"""Requests and answers of the API, a file per noun: checked on the way in, documented by
the schema.
"""
