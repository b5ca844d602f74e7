"""The history of many runs: their summaries, their list, and what changed from run to run."""
