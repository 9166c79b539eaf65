"""A transactional outbox and inbox for Django applications: `pip install
'catmq-client[django]'`.

    INSTALLED_APPS = [..., "catmq_client.contrib.django_outbox"]

    from catmq_client.contrib.django_outbox import inbox, outbox

    with transaction.atomic():
        order = Order.objects.create(...)
        outbox.send("orders", json={"id": order.id}, key=str(order.customer_id))

The message lies in a table of the application's own database, so it exists if and only if
the order does.
`manage.py relay_outbox` carries it to the brokers. A row's way:

    waiting ── claim: batch id and queue are written ──▶ claimed ── receipt ──▶ deleted
       ▲                                                    │
       ├──────── refused for certain, may go elsewhere ─────┤
       │                                                    └── refused for good ──▶ failed
       └── held: waits behind a failed row of its key; --retry and --discard let it go

Nothing moves a position over the table's ids. They become visible out of order, so a relay
that remembers "everything up to 17 is sent" never sees the 16 that commits later. Here a
row is waiting until it is sent, whenever it turned up.
"""
