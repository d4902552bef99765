"""Object stores and other places by URL: addresses, clients, objects that are read as files are."""
