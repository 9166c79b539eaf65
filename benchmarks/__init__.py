"""What the product reaches, beside what the database can do at all, in one run:
`script/bench`.
"""
