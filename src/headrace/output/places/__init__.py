"""Where outputs lie: a port, with one adapter for folders and one for object stores."""
