"""Changes: form, preview, confirmation, carried out once."""
