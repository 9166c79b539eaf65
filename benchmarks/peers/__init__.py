"""`script/bench peers`: compare CatMQ with other queues in one run.

servers/    start and stop each system, and name the processes that belong to it
clients/    publish and consume with the Python library of each system
worker.py   a client process: publishes or consumes for some seconds and reports
runner.py   starts client processes together and takes the CPU time of all sides
rounds.py   starts all systems and measures every line of each in every round
report.py   medians, spreads and tables
programs.py downloads servers and libraries, once
"""
