"""Pages of the installation: overview, alarms, brokers, consistency, settings."""
