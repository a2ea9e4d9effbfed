"""Files, folders, locks, memory, progress, findings and output. Imports `errors` and `options` only."""
