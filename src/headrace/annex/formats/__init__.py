"""Formats of files that few jobs have: Avro, ORC, TFRecord, WebDataset."""
