"""Workers on a Ray cluster; the one place that imports Ray."""
