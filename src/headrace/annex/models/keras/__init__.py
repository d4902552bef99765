"""Keras models and TensorFlow SavedModels as predictors."""
