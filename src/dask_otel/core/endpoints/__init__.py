"""The destinations of telemetry, and explanations of failed exports."""
