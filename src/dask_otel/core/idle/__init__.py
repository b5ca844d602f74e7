"""Where the cluster's thread-seconds went: busy, idle, unused, lost."""
