"""Ray AIR's older names: ``BatchPredictor`` and checkpoints."""
