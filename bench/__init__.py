"""The benchmark: one table, from one run, of Headrace, a hand-written loop and its peers."""
