"""Folders and users of every format so far, which must open for ever."""
