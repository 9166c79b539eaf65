"""Sends ten orders and prints where each is stored. CATMQ_URL and CATMQ_API_KEY come from
the environment.

Orders of one customer have the same key, so they stay in order.
"""

from __future__ import annotations

from catmq_client import Producer

with Producer() as producer:
    futures = [
        producer.send_async(
            "orders", json={"order": number, "item": "tea"}, key=f"customer-{number % 3}"
        )
        for number in range(10)
    ]
    for future in futures:
        receipt = future.result()  # raises if the message could not be stored
        print(f"{receipt.topic} queue {receipt.queue} offset {receipt.offset}")
