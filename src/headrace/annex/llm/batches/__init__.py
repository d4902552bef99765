"""Batch files that a provider's batch service answers: sent in parts, waited for, and put in order."""
