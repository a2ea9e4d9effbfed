"""From a table to a corpus: columns, the schema of a context, tokens and their ids."""
