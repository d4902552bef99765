"""The Dataset and its verbs, one module for each thing that they are for."""
