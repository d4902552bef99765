"""PyTorch modules and exported programs as predictors."""
