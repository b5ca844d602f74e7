"""Files and what others saved to runs: spans and series as plain data, hostile input included."""
