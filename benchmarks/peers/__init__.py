"""`script/bench peers`: CatMQ beside other queues, in one run.

servers/   start and stop each system, and say which processes belong to it
clients/   publish and consume with the Python library of each system
worker.py  a client process: publishes or consumes for some seconds, and reports
runner.py  starts client processes together and takes the CPU time of all sides
report.py  medians, spreads and tables
"""
