"""Sound and video files."""
