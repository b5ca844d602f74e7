"""What happens to machines and processes: clocks, forks, memory."""
