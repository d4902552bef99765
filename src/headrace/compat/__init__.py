"""Other libraries' names for our things, so that programs written for them need few changes."""
