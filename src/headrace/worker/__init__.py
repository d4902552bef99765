"""What runs in a worker process: one attempt at a shard, from the source to the file that it writes."""
