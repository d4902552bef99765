"""Sound, video, and pages of documents."""
