"""How values lie in Arrow: batches, columns, tensors, nulls, and the views that user code gets."""
