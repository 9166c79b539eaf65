"""Pages. Each view makes a single call to the lower layers and renders the result."""
