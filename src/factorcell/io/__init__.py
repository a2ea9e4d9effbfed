"""Files, folders, locks, processes, progress, findings and output. Imports `options` only."""
