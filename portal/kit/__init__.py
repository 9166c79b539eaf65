"""Parts of pages: lists, charts, bars, bodies of messages."""
