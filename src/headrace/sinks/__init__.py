"""Sinks: where the parts of a run are written."""
