"""Where a plan, options, an engine and an output become a run."""
