"""Explanations: which words are evidence for a context, and the embeddings of contexts."""
