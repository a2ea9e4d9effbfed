"""The language model and its run folder: a context to a change of the weights, tokens to log probabilities."""
