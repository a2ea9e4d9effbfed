"""What somebody types, finished; users learned online."""
