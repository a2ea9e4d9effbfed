"""Files, folders, locks, digests, processes, progress and findings. Imports `options` only."""
