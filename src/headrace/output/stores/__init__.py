"""Outputs in object stores: a journal of numbered objects, parts put on conditions, one driver at a time."""
