"""See ``interfaces``."""
