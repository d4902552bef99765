"""From verbs to what workers run: logical plan, identity, fusion, preflight."""
