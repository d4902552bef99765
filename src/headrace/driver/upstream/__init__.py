"""The stages before the last: which worker makes which block, and which attempt gets it."""
