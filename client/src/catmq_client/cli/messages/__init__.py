"""Commands on messages: send, consume, peek, tail, find, traces, delayed, recall."""
