"""Workers: samples of their levels, and a plugin and hooks on them."""
