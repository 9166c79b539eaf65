"""Commands on messages: send, consume, peek, find, delayed."""
