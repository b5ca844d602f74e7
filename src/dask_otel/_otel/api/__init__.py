"""OpenTelemetry's API, for what runs beside the user's code: no SDK, no exporter.

What is done with it is up to the user's own provider and instrumentations.
"""
