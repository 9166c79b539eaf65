"""The portal: pages for users who log in, and Django admin as a read-only browser of the
metadata.
"""
