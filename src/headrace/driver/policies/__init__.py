"""The policies that the loop asks, one per file. See ``headrace.driver.policy`` for the protocol."""
