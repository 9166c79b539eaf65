"""HTTP to the brokers: connections, requests, answers, and the choice of a broker."""
