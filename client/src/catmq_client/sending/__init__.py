"""Sending: batches, routing, tries, receipts."""
