"""Where the blocks of each page run: in a test here, in another test, or nowhere with a
reason.

Every page with a shell, Python or SQL block is in exactly 1 of the tables
(tests/architecture/test_page_code.py). All commands of all pages are checked by the real
parsers (tests/architecture/test_commands.py), and the names in Python blocks exist.
"""

from __future__ import annotations

# In tests/contract/test_pages.py, in this order, on the same broker.
COMMANDS = (
    "how-to/limit-sending.md",
    "how-to/manage-api-keys.md",
    "how-to/find-a-message.md",
    "how-to/send-later.md",
    "how-to/broadcast.md",
    "how-to/share-a-queue-among-many-workers.md",
    "how-to/reset-offsets.md",
    "how-to/handle-failures.md",
    "how-to/keep-order.md",
    "how-to/expand-a-topic.md",
    "how-to/index-keys.md",
    "how-to/keep-a-topic-small.md",
    "how-to/verify-a-topic.md",
)
# All blocks, by another test.
ELSEWHERE = {
    "../README.md": "tests/acceptance/test_documents.py",
    # its blocks are those of README.md
    "../README.zh-CN.md": "tests/architecture/test_docs.py",
    "how-to/monitor.md": "tests/unit/test_monitoring.py",
    "tutorial/first-steps.md": "tests/acceptance/test_documents.py",
    "tutorial/first-steps.zh-CN.md": "tests/architecture/test_docs.py",
    "how-to/back-up-and-restore.md": "tests/acceptance/test_backup_page.py",
    "how-to/install-the-client.md": "tests/acceptance/test_install_page.py",
    "how-to/copy-definitions.md": "tests/acceptance/test_operator_pages.py",
    "how-to/read-a-topic-with-pandas.md": "tests/data/test_data_pages.py",
    "how-to/use-it-with-asyncio.md": "tests/web/test_asyncio_page.py",
    "how-to/trace-messages.md": "tests/otel/test_otel.py",
    "how-to/query-with-sql.md": "tests/integration/test_queries.py",
    "how-to/run-on-galera.md": "tests/clusters/test_pages.py",
    "how-to/run-on-group-replication.md": "tests/clusters/test_pages.py",
    "how-to/run-on-mariadb.md": "tests/acceptance/test_operator_pages.py",
    "how-to/run-two-brokers.md": "tests/acceptance/test_broker_pages.py",
    "how-to/take-a-broker-out.md": "tests/acceptance/test_operator_pages.py",
    "how-to/use-it-from-django.md": "tests/acceptance/test_django_pages.py",
    "how-to/send-in-a-transaction.md": "tests/acceptance/test_django_pages.py",
    "how-to/run-django-tasks.md": "tests/acceptance/test_django_pages.py",
    "how-to/test-without-a-broker.md": "tests/unit/test_documented_tests.py",
}
NOT_RUN = {
    "how-to/collect-logs.md": "starts a server that does not end; "
    "tests/acceptance/test_json_logs.py starts it with the same settings",
    "how-to/check-an-installation.md": "its result depends on the machine; "
    "tests/integration/test_doctor.py runs the command",
    "explanation/rates.md": "takes half an hour; tests/acceptance/test_bench_peers.py runs its "
    "short form",
    "how-to/archive-and-replay.md": "needs Spark; tests/spark does the same by the jobs' own calls",
    "how-to/consume-with-a-worker.md": "has no end; tests/acceptance/test_commands.py runs it",
    "how-to/install-the-server.md": "needs root; tests/acceptance/test_installed_server.py "
    "does what it says with a virtual environment of its own",
    "how-to/encrypt-connections.md": "configures servers; tests/unit/test_tls.py makes its "
    "certificates",
    "how-to/log-in-with-ldap.md": "needs an LDAP server and packages that are not in the "
    "requirements",
    "how-to/run-on-a-cluster.md": "needs servers of one's own; tests/integration/mariadb/"
    "test_store_addresses.py does what it says",
    "how-to/lose-a-node.md": "needs a lost server; "
    "tests/acceptance/scenarios/lost_nodes.py loses one",
    "how-to/move-celery-from-redis.md": "parts of a project; "
    "tests/acceptance/programs/celery_shop.py is one",
    "how-to/move-from-pmq.md": "needs PMQ; tests/integration/site/test_import_pmq.py has "
    "its tables",
    "how-to/play-outages.md": "takes minutes; tests/acceptance/chaos.py is what it calls",
    "how-to/deploy.md": "takes minutes and a bare machine; script/deployment runs all of it",
    "how-to/run-in-containers.md": "needs images and a cluster; script/image builds and runs "
    "the image, tests/unit/test_deployment.py reads the rest",
    "how-to/put-it-behind-a-proxy.md": "needs a proxy; tests/contract/test_connection_check.py "
    "runs nginx and Caddy",
    "how-to/read-a-topic-with-spark.md": "needs Spark; tests/spark reads and writes in the "
    "same ways, and tests/data/test_data_pages.py runs its notebook",
    "how-to/move-from-django-q2.md": "parts of a project; examples/shop has the same calls",
    "how-to/restart-safely.md": "restarts servers; tests/acceptance/scenarios/restarts.py does",
    "how-to/upgrade.md": "installs another release; "
    "tests/acceptance/test_mixed_releases.py runs two",
    "how-to/use-a-managed-server.md": "needs a server of a cloud",
    "how-to/use-the-portal.md": "takes pictures for minutes; tests/browser/test_tour.py "
    "calls the same",
    "reference/client.md": "parts of programs; tests/unit/test_client_reference.py holds "
    "it to the code",
    "reference/command-line.md": "usage of commands, made from the parsers",
}
