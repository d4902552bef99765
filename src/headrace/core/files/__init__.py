"""Files and folders: opened safely, made durable, named, and told apart by their bytes."""
