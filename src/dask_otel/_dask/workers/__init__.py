"""Workers: samples of their levels, delivery of a plugin, and hooks for tasks."""
