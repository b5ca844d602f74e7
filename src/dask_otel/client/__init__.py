"""Client side: registration, submissions, and the blocks of spans.

It imports neither OpenTelemetry's SDK nor the scheduler's side: a client needs neither.
"""
