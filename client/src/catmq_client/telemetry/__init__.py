"""Reports of a consumer about itself, and about a sample of what it handled; none of it is
needed to work.
"""
