"""ONNX files as predictors."""
