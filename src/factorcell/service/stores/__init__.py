"""Stores of user records in SQLite, PostgreSQL and Redis, behind one protocol."""
