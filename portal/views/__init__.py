"""Pages. A view makes one call to the lower layers and renders what it returns."""
