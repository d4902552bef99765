"""Queries: their results are datasets like any other, made before the run that reads them.

``source`` has the one primitive; ``engines`` the port of what answers a query, and which there are.
"""
