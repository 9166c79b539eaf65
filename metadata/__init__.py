"""Records of what exists, who reads it and how far: models, snapshot and every verb that
changes them.
"""
