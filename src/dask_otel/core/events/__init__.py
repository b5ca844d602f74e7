"""Events of the cluster: log records with a text that a person reads."""
