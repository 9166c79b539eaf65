"""The kinds of findings of the doctor: severity, cause, why it matters, and remedy.

Findings about a server that the registration of a node makes too have their texts in
`preflight.TEXTS`: the first sentence is the cause, the others are the remedy. This module
adds why that matters, and remedies that the texts lack. The portal translates all texts.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from messagestore.nodes import preflight


class Severity(StrEnum):
    WARNING = "warning"  # it works now; it will cost messages, time or safety later
    ERROR = "error"  # something does not work, or messages can be lost


class Advice(NamedTuple):
    """Texts of a kind of finding, with placeholders for the values of a finding."""

    severity: Severity
    cause: str
    why: str
    remedy: str


def _warning(cause: str, why: str, remedy: str) -> Advice:
    return Advice(Severity.WARNING, cause, why, remedy)


def _error(cause: str, why: str, remedy: str) -> Advice:
    return Advice(Severity.ERROR, cause, why, remedy)


DOCTOR = {
    "check_failed": _error(
        "The check %(check)s failed: %(reason)s.",
        "Faults in this part are not reported.",
        "Read the reason. If it names no cause, read the log of the process and report it.",
    ),
    "check_timeout": _error(
        "The check %(check)s did not end within %(seconds)g s.",
        "Faults in this part are not reported. A database that hangs holds up its users, too.",
        "Look at the process list and the disk of the database that the check reads.",
    ),
}
NODES = {
    "no_node": _error(
        "No node is registered.",
        "Topics need a node to store their messages.",
        "Run manage.py register_node NAME URL.",
    ),
    "no_retry_node": _warning(
        "No retry node is registered.",
        "Failed messages cannot be stored for a retry or as dead letters.",
        "Run manage.py register_node NAME URL --kind failure.",
    ),
    "node_offline": _warning(
        "It is set offline, and was not examined.",
        "Its queues take no messages and give none.",
        "Open it when its database is ready: manage.py set_node %(node)s --state read_write.",
    ),
    "isolation": _error(
        "Connections run at the isolation level %(found)s.",
        "The statements are written for READ COMMITTED. At other levels they wait for locks "
        "of each other, or read old rows.",
        "Remove what changes the level: a proxy, or an init_connect of the server.",
    ),
    "root_account": _warning(
        "Brokers log in as %(user)s.",
        "With this password, an intruder may do everything on the server.",
        "Create an account of its own, and give it with manage.py set_account %(node)s. "
        "manage.py grants prints its rights.",
    ),
    "no_password": _error(
        "The account %(user)s has no password.",
        "Everybody who reaches the server can read and change all messages.",
        "Give the account a password on the server, then run manage.py set_account %(node)s.",
    ),
    "replica_away": _error(
        "Its replica cannot be reached: %(reason)s.",
        "If the node fails now, there is no copy to promote.",
        "Start the replica, or name another server: manage.py set_replica %(node)s.",
    ),
    "replica_foreign": _error(
        "The server at %(address)s has the data of another node, or none.",
        "It cannot be promoted if the node fails.",
        "Set up replication from the node, or correct the address: manage.py set_replica "
        "%(node)s.",
    ),
    "replica_writable": _warning(
        "Its replica accepts writes.",
        "A program that writes to the replica makes it differ from the node, and replication "
        "stops.",
        "Run SET GLOBAL read_only = 1 on the replica, and set it in its configuration file.",
    ),
    "replica_stopped": _error(
        "Its replica does not replicate.",
        "Messages that are sent now are on a single server.",
        "Read SHOW REPLICA STATUS on the replica, remove the cause, and run START REPLICA.",
    ),
    "replica_behind": _warning(
        "Its replica lacked %(messages)d messages that the node had %(seconds)g s before.",
        "If the node fails now, these messages are lost.",
        "Give the replica faster disks or more parallel workers, or look for a long "
        "transaction there.",
    ),
    "row_image": _warning(
        "binlog_row_image is %(found)s.",
        "Tools that read the binary log, among them those that undo a wrong change, need "
        "whole rows.",
        "Run SET GLOBAL binlog_row_image = FULL, and set it in the configuration file.",
    ),
    "long_transaction": _warning(
        "Connection %(connection)d of %(user)s has a transaction that is %(seconds)d s old.",
        "It keeps old rows, which slows down every read, and holds up changes of tables.",
        "Look at its statement (SHOW PROCESSLIST), and end it: KILL %(connection)d.",
    ),
    "connections_short": _warning(
        "%(workers)d workers of brokers may open %(needed)d connections, and the server "
        "allows %(limit)d.",
        "At the highest load the server refuses connections, and sends and pulls fail.",
        "Raise max_connections, or lower CATMQ_POOL_SIZE or CATMQ_WORKERS.",
    ),
    "connections_near": _warning(
        "%(used)d of %(limit)d connections are in use.",
        "Soon the server refuses further connections, and sends and pulls fail.",
        "Look for who holds them (SHOW PROCESSLIST), or raise max_connections.",
    ),
    "disk_full": _error(
        "%(percent).1f %% of its %(total).1f GB are free.",
        "Sends to this node are refused, so that its database does not fail.",
        "Shorten the retention of topics, purge archived messages, or add disk space.",
    ),
    "disk_low": _warning(
        "%(percent).1f %% of its %(total).1f GB are free.",
        "Below %(full)d %% sends to this node are refused.",
        "Shorten the retention of topics, purge archived messages, or add disk space.",
    ),
    "disk_filling": _warning(
        "It will be full in %(days).1f days if it keeps growing as in the last days.",
        "Then sends to this node are refused.",
        "Shorten the retention of topics, add disk space, or add a node for new queues.",
    ),
    "delayed_overdue": _error(
        "Delayed messages and retries of %(queues)d queues are late by up to %(seconds)d s.",
        "They are not delivered at their time.",
        "Look for errors of the loop “delays” in the log of the brokers, and for a node that "
        "takes no writes.",
    ),
}
METADATA = {
    "metadata_away": _error(
        "The metadata database cannot be used: %(reason)s.",
        "Nothing else can be checked. Consumers cannot join, and nothing can be changed.",
        "Start it, and check CATMQ_DATABASE_URL. On a new installation, run manage.py prepare.",
    ),
    "migrations_missing": _error(
        "%(count)d migrations are not applied, the first is %(first)s.",
        "This release needs columns and tables that are not there.",
        "Run manage.py prepare.",
    ),
    "migrations_unknown": _warning(
        "It has migrations of a later release: %(names)s.",
        "Releases are meant to work together only for the time of an upgrade.",
        "Complete the upgrade: install the later release here, too.",
    ),
    "metadata_large": _warning(
        "It takes %(gigabytes).1f GB.",
        "Metadata has no messages. This size means that old rows are not deleted, and backups "
        "take long.",
        "Look at the jobs that delete old rows (prune_…) on the page of jobs.",
    ),
    "metadata_disk": _error(
        "%(percent).1f %% of the disk of %(path)s are free.",
        "On a full disk, metadata and embedded nodes cannot be changed.",
        "Free disk space, or move CATMQ_DATA_DIR to a larger disk.",
    ),
}
BROKERS = {
    "no_broker": _error(
        "No broker is alive.",
        "Clients can neither send nor read.",
        "Start a broker: script/server.",
    ),
    "broker_lost": _warning(
        "It stopped reporting %(seconds)d s ago, without an orderly stop.",
        "It was killed, or cannot reach the metadata database.",
        "Start it again, or remove it: catmq broker forget %(broker)s.",
    ),
    "broker_away": _error(
        "%(url)s does not answer: %(reason)s.",
        "Clients learn this address from the other brokers, and cannot use it.",
        "Set CATMQ_BROKER_URL to an address that clients and brokers reach.",
    ),
    "versions_differ": _warning(
        "Live brokers have different versions: %(versions)s.",
        "That is right during an upgrade only: new features wait until all brokers have them.",
        "Restart the brokers that have the former release.",
    ),
    "version_old": _warning(
        "It has version %(version)s, and this release is %(own)s.",
        "A broker that still runs the former code does not have the fixes that are installed.",
        "Restart it.",
    ),
    "snapshot_late": _error(
        "These workers have not loaded a change of metadata for %(seconds)g s: %(workers)s.",
        "They serve old topics, keys and rights, and hold up the promotion of a node.",
        "Read their log. If they do not answer, restart their broker.",
    ),
    "foreign_keys": _error(
        "The keys of this process are not those of the installation: %(reason)s",
        "Brokers refuse consumer ids that are signed with it, and it cannot decrypt the "
        "passwords of nodes.",
        "Use secret.key and encryption.key, or CATMQ_SECRET_KEY and CATMQ_ENCRYPTION_KEYS, of "
        "a broker that works.",
    ),
    "files_limit": _warning(
        "A process may open %(limit)d files, and a worker of %(threads)d threads needs "
        "%(needed)d.",
        "Above the limit, a broker accepts no further connections.",
        "Raise the limit: ulimit -n, or LimitNOFILE of the service.",
    ),
}
JOBS = {
    "jobs_silent": _error(
        "No scheduled job has run for %(minutes)d minutes.",
        "Alarms, retention, retirement of queues and figures of charts stand still.",
        "Start the process of schedules: script/server, or manage.py qcluster.",
    ),
    "job_late": _warning(
        "It last began %(minutes)d minutes ago, and is due every %(every)d minutes.",
        "Its work is not done.",
        "Look at the page of jobs for a run that does not end, and restart the process of "
        "schedules.",
    ),
    "job_failed": _warning(
        "Its last run failed: %(reason)s.",
        "Its work is not done.",
        "Remove the cause, then run it: manage.py run_job %(job)s.",
    ),
}
KEYS = {
    "old_key": _warning(
        "It is %(days)d days old, and has the rights %(rights)s.",
        "The longer a key is in use, the more copies of it exist.",
        "Create another key, give it to the programs that use this key, then run catmq key "
        "revoke %(key)s.",
    ),
    "old_secret": _warning(
        "The %(purpose)s key of the installation is %(days)d days old.",
        "The longer a key is in use, the more copies of it exist, also in backups.",
        "Rotate it: docs/how-to/change-secrets.md.",
    ),
    "former_keys": _warning(
        "%(count)d former signing keys are still accepted, %(days)d days after the change.",
        "Sessions and consumer ids that are signed with a former key are valid.",
        "Remove CATMQ_SECRET_KEY_FALLBACKS from the environment, and restart the brokers.",
    ),
    "secret_readable": _error(
        "Other users of this machine can read %(path)s.",
        "With it they can sign in as anybody, or decrypt the passwords of nodes.",
        "Run chmod 600 %(path)s, and rotate the keys if strangers had access.",
    ),
    "java_open": _warning(
        "Java clients of %(networks)s may send and read every topic without a key.",
        "Every program on these networks has all messages.",
        "Set CATMQ_JAVA_KEY to a key with the rights that Java clients need.",
    ),
    "debug_on": _error(
        "CATMQ_DEBUG is on.",
        "Error pages show settings and code to all who reach the server.",
        "Remove CATMQ_DEBUG from the environment, and restart the brokers.",
    ),
}
ALARMS = {
    "no_recipient": _warning(
        "Alarms have no recipients.",
        "Users notice a full disk or a failed node before you do.",
        "Set CATMQ_ALARM_EMAILS and CATMQ_SMTP_URL, and try it: manage.py send_test_mail.",
    ),
    "alarm_unheard": _warning(
        "%(count)d active alarms have no recipient: %(names)s.",
        "No mail was sent when they began.",
        "Set CATMQ_ALARM_EMAILS, or the recipients of the groups and topics.",
    ),
    "no_mail_server": _error(
        "Alarms have recipients, but there is no mail server.",
        "No mail about an alarm is sent.",
        "Set CATMQ_SMTP_URL, and try it: manage.py send_test_mail.",
    ),
    "mail_failing": _error(
        "%(count)d mails about alarms wait; the last error is: %(reason)s.",
        "No mail about an alarm is sent.",
        "Correct CATMQ_SMTP_URL, and try it: manage.py send_test_mail.",
    ),
    "alarm_active": _warning(
        "The alarm %(kind)s is active: %(names)s.",
        "An alarm reports something that an operator should act on.",
        "Open the page of alarms, which has the cause of each.",
    ),
}
TOPICS = {
    "retention_behind": _warning(
        "%(queues)d of its queues have messages that are %(days).1f days older than its "
        "retention of %(kept)d days.",
        "Messages are stored longer than they should be, and the disks of the nodes fill.",
        "Look at the runs of the job expire_messages, and try it: manage.py cleanup TOPIC.",
    ),
}
ADVICE: dict[str, Advice] = {
    **DOCTOR,
    **NODES,
    **METADATA,
    **BROKERS,
    **JOBS,
    **KEYS,
    **ALARMS,
    **TOPICS,
}

# Why the findings of a preflight matter, by `Finding.about`.
PREFLIGHT_WHY = {
    "reachable": "Its queues take no messages and give none while it does not answer.",
    "tls": "Without a verified encryption, others on the network can read messages and "
    "passwords, or pose as the server.",
    "version": "Errors and holes that are known are not repaired any more.",
    "way": "Locks, user variables and the end of a connection do not work through it, so "
    "messages can be lost.",
    "limits": "Single requests fail, or their outcome stays unknown.",
    "text": "Texts with characters outside of the character set cannot be stored.",
    "writable": "Sends and commits to its queues fail.",
    "durable": "A crash of the server could lose messages after their senders got a receipt.",
    "rights": "Operations that use the right fail.",
    "clock": "Delays, ages and retention are computed from this clock.",
    "schema": "Features of this release wait for the changes, or the node is not served.",
    "data": "Brokers would serve messages of another installation, or none.",
    "cluster": "The loss of a further server can stop the node, or lose messages.",
    "replicas": "Acknowledged messages can be lost with the server.",
    "capacity": "When the disk fills, the database fails instead of refusing messages.",
}
# For a subject that has no sentence of its own yet.
REGISTRATION_WHY = "A server with this fault is not registered as a node without a warning."
# Remedies of findings whose text in `preflight.TEXTS` has none, or more than a remedy.
PREFLIGHT_REMEDIES = {
    "unfit": "Register a server of a supported version.",
    "foreign": "Correct the address of the node, or restore its data and run manage.py "
    "adopt_restored_node.",
    "quarantined": "Restore the data, then run manage.py adopt_restored_node.",
    "misfit": "Install a release that fits the tables, or restore them.",
    "new_schema": "Complete the upgrade: install the later release here, too.",
    "no_capacity": "Set the disk space that the node may use: manage.py set_node NAME "
    "--capacity-gb N.",
    "few_members": "Start or repair the members that are missing.",
    "member_away": "Start the server, or remove its address from the list.",
    "member_fault": "Repair the server, or remove its address from the list.",
    "member_queue": "Look for a slow disk, or for too few applying threads, on this server.",
    "wrong_clock": "Synchronize both clocks with NTP.",
    "old_version": "Upgrade the server.",
    "proxy": "Give the address of the server itself.",
}


def split_preflight_text(text: str, *, stop: str = ". ") -> tuple[str, str]:
    """Split a text of `preflight.TEXTS` into cause and remedy.

    `stop` ends a sentence: it is "。" in Chinese.

    >>> split_preflight_text("The clock is wrong. Synchronize it.")
    ('The clock is wrong.', 'Synchronize it.')
    """
    cause, mark, remedy = text.partition(stop)
    return (cause + mark.rstrip(), remedy) if mark else (text, "")


def preflight_advice(*, about: str, text: str, verdict: str) -> Advice:
    """Return the texts of a preflight's finding that is not ok."""
    cause, remedy = split_preflight_text(preflight.TEXTS[text])
    return Advice(
        severity=Severity.ERROR if verdict == "bad" else Severity.WARNING,
        cause=cause,
        why=PREFLIGHT_WHY.get(about, REGISTRATION_WHY),
        remedy=PREFLIGHT_REMEDIES.get(text, remedy),
    )
