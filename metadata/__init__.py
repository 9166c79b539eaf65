"""What exists, who reads it and how far: the models, the snapshot and every verb that changes them."""
