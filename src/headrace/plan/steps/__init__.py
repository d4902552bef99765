"""The steps of a plan. How each runs is in ``worker/steps``."""
