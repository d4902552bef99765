"""What some jobs need: the core imports nothing of it, and finds it by name."""
