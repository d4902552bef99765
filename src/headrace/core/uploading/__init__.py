"""What is staged on this machine and uploaded from there: by drivers, and by workers that do not see their folder."""
