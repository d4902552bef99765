"""Where pools live: in this process, or in worker processes of this machine."""
