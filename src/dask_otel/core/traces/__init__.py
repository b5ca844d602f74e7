"""Traces: from the record of a finished span to OpenTelemetry's data model."""
