"""Hypotheses of a recogniser, scored in context and chosen anew."""
