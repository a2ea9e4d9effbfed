"""From a corpus to a trained run."""
