"""Messages in tables on nodes, and every verb that needs a table or a head.

`tables` is the package of storage verbs; `tables/sql/<engine>.sql` holds their statements.
The other modules are the product's verbs, one noun each: `publish`, `pull`, `positions`,
`topics`, …
"""
