"""Trained models as folders without pickles: a class per library."""
