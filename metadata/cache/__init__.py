"""The snapshot of metadata in each process."""
