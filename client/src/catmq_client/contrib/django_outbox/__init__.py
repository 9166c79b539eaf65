"""A transactional outbox and inbox for Django applications. Needs the extra `django`.

    INSTALLED_APPS = [..., "catmq_client.contrib.django_outbox"]

    from catmq_client.contrib.django_outbox import inbox, outbox

    with transaction.atomic():
        order = Order.objects.create(...)
        outbox.send("orders", json={"id": order.id}, key=str(order.customer_id))

The message is a row in the application's own database, so it exists if and only if the
order does. `manage.py relay_outbox` sends the rows to the brokers. States of a row:

    waiting ── claim: batch id and queue are written ──▶ claimed ── receipt ──▶ deleted
       ▲                                                    │
       ├──────── certainly not stored, may be re-routed ────┤
       │                                                    └── refused for good ──▶ failed
       └── held: waits for a failed row of its key; --retry and --discard release it

The relay keeps no position in the table's ids. Ids become visible out of order, so a relay
that remembers "everything up to 17 is sent" never sees the 16 that commits later. Here a
row is waiting until it is sent, whenever it became visible.
"""
