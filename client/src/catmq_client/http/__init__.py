"""The way to the brokers: connections, requests, answers, and which broker to ask."""
