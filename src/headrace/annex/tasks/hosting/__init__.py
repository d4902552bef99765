"""The worker's side of an executor: what runs calls there, and what stands for the executor in them."""
