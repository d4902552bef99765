"""Observers that hand a run to systems where people already look: OpenTelemetry, MLflow."""
