"""Context columns: their kinds, the schema of a table, and the values of each row as arrays."""
