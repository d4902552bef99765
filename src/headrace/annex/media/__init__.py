"""Sound, video and PDF files."""
