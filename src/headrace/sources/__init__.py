"""Sources: where rows come from. Each module is imported only when something of its kind is read."""
