"""The API's part: the current context, and nothing that exports.

Clients and workers import it, and nothing else of OpenTelemetry: what the user's own provider
and instrumentations make there becomes part of the trace.
"""
