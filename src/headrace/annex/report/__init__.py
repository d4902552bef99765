"""The report of a run: its history, what can be seen in it, the page that shows it. All pure functions."""
