"""The nouns: batches, splits, shards, records, events, and the ports that adapters fill."""
