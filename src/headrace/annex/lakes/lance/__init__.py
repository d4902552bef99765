"""Lance tables."""
