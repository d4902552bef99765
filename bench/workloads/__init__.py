"""Jobs that are more than numbers in a table: what a user would bring along for each, and how its data are made."""
