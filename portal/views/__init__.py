"""The pages, one file per noun. A view makes one call into the layers below for what it
shows.
"""
