"""A Django project whose orders are made by tasks, for scenarios in which its processes
die.
"""
