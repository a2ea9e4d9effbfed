"""The search for options with Optuna."""
