"""A stream of what people wrote, in order: predicted, judged, learned."""
