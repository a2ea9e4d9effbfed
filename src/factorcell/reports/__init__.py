"""Results as charts and self-contained HTML pages."""
