"""Observers: they watch a run and never decide anything."""
