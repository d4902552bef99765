"""Tar archives of samples, read, and written."""
