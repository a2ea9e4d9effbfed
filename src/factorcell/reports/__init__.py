"""Charts and self-contained HTML pages of results."""
