"""Models of other libraries as predictors: one module per library, which is imported only there."""
