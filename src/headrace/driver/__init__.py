"""What runs in the driver while workers work: the loop, what it decides next, and the policies that it asks."""
