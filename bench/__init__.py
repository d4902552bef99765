"""The benchmark: one table, from one run, of Millrace, a hand-written loop and its peers."""
