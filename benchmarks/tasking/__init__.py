"""A Django project whose tasks run on CatMQ, or on one of three others; see
benchmarks/tasks.py.
"""
