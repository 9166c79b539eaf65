"""Sessions on a node of each engine, their errors, and the messages that they carry."""
