"""How well models predict and classify texts, and what they have learned."""
