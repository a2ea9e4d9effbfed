"""Options with their limits and choices, and what other packages add to them. Imports nothing else."""
