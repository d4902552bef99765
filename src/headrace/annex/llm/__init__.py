"""Language models: endpoints, engines in a worker, files of batch services. ``headrace.llm`` has what is public."""
