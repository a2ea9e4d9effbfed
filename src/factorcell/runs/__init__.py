"""The run folder: opening and saving a run, its results, its model card, and its export to other formats."""
