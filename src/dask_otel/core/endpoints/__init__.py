"""Where telemetry is sent, and what it means if it does not get there."""
