"""What runs beside the user's code: registration, and the blocks of spans.

Imports neither OpenTelemetry's SDK nor the scheduler's side: a client needs neither.
"""
