"""OpenTelemetry's API, for processes with the user's code: no SDK, no exporter.

The user's own provider and instrumentations decide its effect.
"""
