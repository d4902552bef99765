"""The verbs of a dataset, one module for each thing that they are for; ``Dataset`` has them all."""
