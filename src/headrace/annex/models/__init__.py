"""Predictors of libraries that few jobs have."""
