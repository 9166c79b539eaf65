"""Requests and answers of the API, one file per noun: checked on the way in, documented by
the schema.
"""
