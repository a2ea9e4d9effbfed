"""Context adapters for models of `transformers`: each text of a batch has its own context."""
