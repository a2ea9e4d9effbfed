"""People who type, served: each one's texts are kept in a store, learned, and forgotten when asked."""
