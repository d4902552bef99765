"""Parts of Ray Data that are private there, and that its guides use all the same."""
