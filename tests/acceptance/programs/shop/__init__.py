"""A small Django application of a user: it sells, and tells of it through the outbox."""
