"""Stores keep one record per user: in SQLite, PostgreSQL or Redis, behind one protocol."""
