"""What the bridge costs, measured: ``python -m benchmarks`` (or ``make bench``)."""
