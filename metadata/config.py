"""The settings of a CatMQ process, read from the environment once and checked at start.

A field `max_wait_ms` is set by the variable `CATMQ_MAX_WAIT_MS`. An unknown variable is
refused with the nearest known name, so that a typing error cannot pass unnoticed. Values
that operators change while the system runs (retention, session time-outs, node states) are
columns in metadata, not settings.
"""

from __future__ import annotations

import difflib
import inspect
import os
import re
import secrets
import socket
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from cryptography.fernet import Fernet

from metadata import certificates, data_dir, secret_files
from metadata.installation import DATA_DIR
from metadata.rules import mail, tls
from metadata.rules.addresses import DEFAULT_PORT, parse_addresses
from metadata.rules.membership import addresses
from metadata.rules.membership.brokers import is_broker_url
from metadata.rules.path_prefix import prefix_problem

PREFIX = "CATMQ_"
# Variables of the client, of commands, of jobs and of tests, which may be in the same
# environment and are no settings of the server. All variables that a command or a
# documented settings module reads must be here (test_site_config.py checks it).
FOREIGN = (
    "CATMQ_URL",
    "CATMQ_API_KEY",
    "CATMQ_CA_FILE",
    "CATMQ_ADMIN_USER",
    "CATMQ_ADMIN_PASSWORD",
    "CATMQ_PMQ_URL",
    "CATMQ_PMQ_URL_FILE",
    "CATMQ_LDAP_PASSWORD",
)
FOREIGN_PREFIXES = ("CATMQ_NODE_", "CATMQ_TEST_")
# Settings that have one of a few values.
CHOICES = {
    "process": ("command", "broker", "jobs"),
    "language": ("en", "zh-hans"),
    "log_format": ("text", "json"),
    "access_log": ("off", "errors", "on"),
}
LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
ALL_ADDRESSES = ("", "0.0.0.0", "[::]")  # noqa: S104  hosts of `bind`
# A field of Config with the comment above it. Headings (`# == … ==`) are no comments.
FIELD_COMMENT = re.compile(r"((?:^    # (?!==).+\n)+)^    (\w+): [^=]+ = ", re.MULTILINE)
DAILY_REPORT = re.compile(r"[a-z_]+(:(direct|spark))?")
MAY_BE_ZERO = ("hsts_days", "java_requests_per_s")
BROKER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,199}")


class ConfigError(ValueError):
    """The environment has a setting that is unknown or cannot be used. The text names it
    and the reason.
    """


def _secret(default: Any) -> Any:
    """Return a field that is left out of the repr, and so of logs and tracebacks."""
    return field(default=default, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """All settings, with their defaults. The comment above a field is its documentation:
    meaning, unit, special value.
    """

    # == Where things are ==
    # data directory of this installation
    data_dir: Path = DATA_DIR
    # more directories that may have files of SQLite nodes
    sqlite_dirs: tuple[str, ...] = ()
    # metadata: mysql://user:password@host:3306/name[?tls=…]; empty: SQLite
    database_url: str = _secret("")
    # address and port that the broker listens on
    bind: str = "127.0.0.1:8000"
    # name of this broker in the registry, unique; empty: <host name>:<port>
    broker_name: str = ""
    # URL of this broker for clients; empty: made from bind or the host name
    broker_url: str = ""
    # path of portal and API behind a proxy, such as /catmq; empty: none
    path_prefix: str = ""
    # kind of this process: command, broker (set by gunicorn_conf.py) or jobs
    process: str = "command"

    # == Secrets ==
    # signs consumer ids, the same on all brokers; empty: in data_dir
    secret_key: str = _secret("")
    # former signing keys that are still accepted
    secret_key_fallbacks: tuple[str, ...] = _secret(())
    # Fernet keys, newest first; empty: in data_dir
    encryption_keys: tuple[str, ...] = _secret(())

    # == The web side ==
    # Django's debug pages; never on a server that others can reach
    debug: bool = False
    # served host names; empty: loopback, or all if bound elsewhere
    allowed_hosts: tuple[str, ...] = ()
    # idle time after which the portal requires a login, minutes
    session_idle_minutes: int = 60
    # maximum duration of a login, hours
    session_hours: int = 12
    # time for which browsers that came by https use nothing else, days; 0: not said
    hsts_days: int = 0
    # addresses or networks whose X-Forwarded-For is believed
    trusted_proxies: tuple[str, ...] = ()
    # networks whose Java clients are let in, without a key; empty: none
    java_networks: tuple[str, ...] = ()
    # API key whose rights and quotas Java clients have; empty: send and read everything
    java_key: str = ""
    # requests/s of Java clients of one address at this broker; 0: no limit
    java_requests_per_s: int = 2_000
    # broker processes
    workers: int = 2
    # threads of a worker, including max_waiters for waiting pulls
    threads: int = 528
    # maximum waiting pulls of a worker; others are answered at once
    max_waiters: int = 400

    # == Logs ==
    # form of log lines: text, or json (an object per line, with the fields of its request)
    log_format: str = "text"
    # requests in the log: off, errors (status 400 and above) or on
    access_log: str = "off"

    # == Speaking to databases ==
    # maximum connections of a worker to one node
    pool_size: int = 8
    # maximum wait of a heartbeat, registration or acquire for metadata, ms
    metadata_timeout_ms: int = 2000
    # interval at which a worker checks for changed metadata, ms
    snapshot_interval_ms: int = 200
    # minimum pause between two reads of log end offsets for waiting pulls, ms
    head_interval_ms: int = 45
    # maximum groups in /metrics, those with the largest lag; and as many topics
    metrics_groups: int = 500

    # == Room on nodes ==
    # minimum free disk space of a node; below it, sends are refused, percent
    min_free_percent: int = 10
    # free disk space of a node below which an alarm is raised, percent
    alarm_free_percent: int = 20

    # == Alarms, and the mails that tell of them ==
    # unread messages in a topic that raise an alarm; groups may override it
    alarm_lag: int = 100_000
    # age of the oldest unread message that raises an alarm, s; groups may override it
    alarm_lag_s: int = 900
    # unread messages in a topic below which age and no consumer are no alarm
    alarm_min_unread: int = 10
    # time of unread messages without a consumer that raises an alarm, s
    alarm_idle_s: int = 300
    # new dead letters of a group within an hour that raise an alarm
    alarm_dead_per_hour: int = 10
    # days until a node is full, at its present growth, that raise an alarm
    alarm_full_days: int = 7
    # recipients of all alarms
    alarm_emails: tuple[str, ...] = ()
    # language of mails, and of pages if the browser asks for none: en or zh-hans
    language: str = "en"
    # mail server, such as smtps://user:password@host:465; empty: no mail
    smtp_url: str = _secret("")
    # allowed domains of recipients, such as example.org; empty: any
    mail_domains: tuple[str, ...] = ()
    # sender address of mails; empty: catmq@<host name>
    mail_from: str = ""

    # == Spark jobs ==
    # Spark master of jobs: local[N], spark://host:7077, yarn, k8s://…
    spark_master: str = "local[*]"
    # memory of the driver and of each executor, in Spark's notation
    spark_memory: str = "1g"

    # == Done once a day, as jobs of the schedule ==
    # topics that Spark archives once a day
    archive_topics: tuple[str, ...] = ()
    # archive directory, with the same path on all machines; empty: below data_dir
    archive_dir: str = ""
    # purge archived messages from the nodes
    archive_purges: bool = False
    # reports to create once a day, such as volume, or volume:spark
    daily_reports: tuple[str, ...] = ()

    # == Limits of a request, shown by GET /api/v1 ==
    # maximum size of a request as received, bytes
    request_max_bytes: int = 8 << 20
    # maximum size of a request after gunzip, bytes
    request_max_unpacked_bytes: int = 16 << 20
    # maximum messages in one send
    max_messages: int = 1000
    # maximum size of a message body, bytes
    max_body_bytes: int = 1 << 20
    # maximum length of a key, characters
    max_key_chars: int = 200
    # maximum length of a tag, characters
    max_tag_chars: int = 100
    # maximum length of a trace id, characters
    max_trace_id_chars: int = 100
    # maximum headers of one message
    max_headers: int = 32
    # maximum size of all headers of one message, bytes
    max_headers_bytes: int = 8192
    # maximum queues in one pull
    max_pull_queues: int = 1000
    # maximum messages in one answer
    max_pull_messages: int = 1000
    # maximum bodies in one answer, bytes; a larger message is sent alone
    max_pull_bytes: int = 8 << 20
    # maximum wait of a pull, ms
    max_wait_ms: int = 30_000
    # maximum messages that a pull with a filter passes over in one queue
    scan_limit: int = 10_000
    # maximum queues of one topic
    max_topic_queues: int = 256

    @property
    def archive_home(self) -> Path:
        return Path(self.archive_dir) if self.archive_dir else self.data_dir / "archive"

    @property
    def database(self) -> Database | None:
        return parse_database_url(self.database_url) if self.database_url else None


@dataclass(frozen=True, slots=True)
class Database:
    host: str
    port: int
    name: str
    username: str
    password: str = field(repr=False)
    encryption: tls.Tls


def parse_database_url(url: str) -> Database:
    """Return the parts of mysql://user:password@host:port/database?tls=…, %-escapes
    decoded. `host` may be a list of addresses, as of a node.

    Raises ConfigError with a text that continues the name of the variable.
    """
    parts = urlsplit(url)
    name = parts.path.lstrip("/")
    try:
        places = parse_addresses(parts.netloc.rpartition("@")[2].lower())
    except ValueError:
        places = ()  # refused below, with the form that is needed
    if parts.scheme not in ("mysql", "mariadb") or not places or not name:
        raise ConfigError("must look like mysql://user:password@host:3306/database")
    try:
        encryption = tls.parse_query(parts.query)
    except ValueError as error:
        raise ConfigError(str(error)) from None
    account = (unquote(parts.username or ""), unquote(parts.password or ""))
    host, port = places[0]
    if len(places) > 1:
        host, port = ",".join(map(str, places)), DEFAULT_PORT
    return Database(host, port, name, *account, encryption)


def load(environ: Mapping[str, str]) -> Config:
    """Return the settings in `environ`, checked. Missing secrets are created and stored in
    data_dir.

    Raises ConfigError, which names the variable.
    """
    config = Config(**_read(environ))  # type: ignore[arg-type]  # parsed by each field's type
    _check(config)
    _check_daily(config)
    _check_mail(config)
    _check_networks(config)
    complete = _with_secrets(_with_address(config))
    _check_broker(complete)
    return complete


def setting_comments() -> dict[str, str]:
    """Return the comment above each field of Config, by field name."""
    fields = FIELD_COMMENT.findall(inspect.getsource(Config))
    return {name: " ".join(re.findall(r"# (.+)", comment)) for comment, name in fields}


def variable_name(name: str) -> str:
    return PREFIX + name.upper()


def _read(environ: Mapping[str, str]) -> dict[str, object]:
    """Return the parsed value of each setting in the environment, by field name. An empty
    variable counts as not set. A secret may be in the file that its variable with _FILE
    names.
    """
    settings = {variable_name(setting.name): setting for setting in fields(Config)}
    file_variables = {
        variable + secret_files.SUFFIX: variable
        for variable, setting in settings.items()
        if not setting.repr
    }
    texts: dict[str, str] = {}
    for variable, text in environ.items():
        if (
            not variable.startswith(PREFIX)
            or variable in FOREIGN
            or variable.startswith(FOREIGN_PREFIXES)
        ):
            continue
        if variable in file_variables:
            variable = file_variables[variable]
            text = _read_secret(environ, variable)
        # A misspelled variable would silently leave its setting at the default.
        elif variable not in settings:
            known_variables = (*settings, *file_variables)
            similar = difflib.get_close_matches(variable, known_variables, n=1)
            hint = (
                f"Did you mean {similar[0]}?"
                if similar
                else "docs/reference/settings.md lists all."
            )
            raise ConfigError(f"{variable} is not a setting. {hint}")
        if text:
            texts[variable] = text
    values: dict[str, object] = {}
    for variable, text in texts.items():
        parse, expected = PARSERS[str(settings[variable].type)]
        try:
            values[settings[variable].name] = parse(text)
        except (ValueError, KeyError):
            raise ConfigError(f"{variable} must be {expected}, not {text!r}.") from None
    return values


def _read_secret(environ: Mapping[str, str], variable: str) -> str:
    try:
        return secret_files.read_variable(environ, variable)
    except secret_files.SecretFileError as error:
        raise ConfigError(str(error)) from None


def _split(text: str) -> tuple[str, ...]:
    # A file of keys may have one a line.
    return tuple(value.strip() for value in re.split("[,\n]", text) if value.strip())


BOOLS = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}
PARSERS: Mapping[str, tuple[Callable[[str], object], str]] = {
    "Path": (lambda text: Path(text).expanduser().resolve(), "a path"),
    "str": (str, "a text"),
    "bool": (lambda text: BOOLS[text.lower()], "true or false"),
    "tuple[str, ...]": (_split, "texts separated by commas"),
    "int": (int, "a whole number"),
}


def _check(config: Config) -> None:
    """Raise ConfigError for values that have the right type and are impossible."""
    for setting in fields(config):
        value = getattr(config, setting.name)
        minimum = 0 if setting.name in MAY_BE_ZERO else 1
        # Not isinstance(): a bool is an int, too.
        if type(value) is int and value < minimum:
            raise ConfigError(
                f"{variable_name(setting.name)} must be at least {minimum}, not {value}."
            )
    if config.max_waiters >= config.threads:
        raise ConfigError(
            "CATMQ_MAX_WAITERS must be less than CATMQ_THREADS: other requests need threads."
        )
    if not config.min_free_percent < config.alarm_free_percent < 100:
        raise ConfigError(
            "CATMQ_ALARM_FREE_PERCENT must be more than CATMQ_MIN_FREE_PERCENT and below 100."
        )
    for name, choices in CHOICES.items():
        choice = getattr(config, name)
        if choice not in choices:
            raise ConfigError(
                f"{variable_name(name)} must be one of {', '.join(choices)}, not {choice!r}."
            )
    if problem := prefix_problem(config.path_prefix):
        raise ConfigError(f"CATMQ_PATH_PREFIX {problem}")
    _check_database(config)
    _check_keys(config)


def _check_database(config: Config) -> None:
    """Raise ConfigError for a malformed URL, or a CA file that cannot be used."""
    try:
        database = config.database
    except ConfigError as error:
        raise ConfigError(f"CATMQ_DATABASE_URL {error}.") from None
    try:
        if database and database.encryption.ca:
            certificates.check_ca(database.encryption.ca)
    except ValueError as error:
        raise ConfigError(f"CATMQ_DATABASE_URL: {error}.") from None


def _check_daily(config: Config) -> None:
    """Raise ConfigError for settings with which a daily job would fail."""
    if config.archive_dir and not os.path.isabs(config.archive_dir):
        raise ConfigError("CATMQ_ARCHIVE_DIR must be an absolute path.")
    if config.archive_topics and not config.archive_dir:
        raise ConfigError("CATMQ_ARCHIVE_TOPICS needs CATMQ_ARCHIVE_DIR, an absolute path.")
    for report in config.daily_reports:
        if not DAILY_REPORT.fullmatch(report):
            raise ConfigError(
                f"CATMQ_DAILY_REPORTS: {report!r} must be a report's name, or NAME:spark."
            )


def _check_mail(config: Config) -> None:
    """Raise ConfigError for a mail server, an address or a domain that cannot be used, or a
    recipient of alarms outside the allowed domains.
    """
    if config.smtp_url:
        try:
            mail.parse_server(config.smtp_url)
        except ValueError as error:
            raise ConfigError(f"CATMQ_SMTP_URL {error}.") from None
    for name, emails in (
        ("ALARM_EMAILS", config.alarm_emails),
        ("MAIL_FROM", (config.mail_from,)),
    ):
        malformed = [
            address for address in emails if address and not mail.is_address(address)
        ]
        if malformed:
            raise ConfigError(f"CATMQ_{name}: {malformed[0]!r} is not an e-mail address.")
    for domain in config.mail_domains:
        if not mail.is_address(f"x@{domain}"):
            raise ConfigError(
                f"CATMQ_MAIL_DOMAINS: {domain!r} is not a domain, such as example.org."
            )
    for address in config.alarm_emails:
        if not mail.is_allowed_recipient(address, config.mail_domains):
            raise ConfigError(
                f"CATMQ_ALARM_EMAILS: {address} is in none of CATMQ_MAIL_DOMAINS."
            )


def _check_networks(config: Config) -> None:
    for name in ("trusted_proxies", "java_networks"):
        try:
            addresses.parse_networks(getattr(config, name))
        except ValueError as error:
            raise ConfigError(f"{variable_name(name)}: {error}.") from None
    if config.java_networks and (
        problem := addresses.width_problem(config.trusted_proxies)
    ):
        raise ConfigError(f"CATMQ_TRUSTED_PROXIES: {problem}")


def _check_keys(config: Config) -> None:
    if config.secret_key and _is_weak(config.secret_key):
        raise ConfigError(
            "CATMQ_SECRET_KEY must be random, with at least 32 characters. Make one: "
            'python3 -c "import secrets; print(secrets.token_urlsafe())"'
        )
    if any(map(_is_weak, config.secret_key_fallbacks)):
        raise ConfigError(
            "CATMQ_SECRET_KEY_FALLBACKS: each key must be random, with at least 32 characters, "
            "because sessions that are signed with it are accepted. Leave a weak one out; "
            "users log in again."
        )
    try:
        for encryption_key in config.encryption_keys:
            Fernet(encryption_key)
    except ValueError:
        raise ConfigError(
            "CATMQ_ENCRYPTION_KEYS: each must be 32 bytes in URL-safe base64."
        ) from None


def _is_weak(key: str) -> bool:
    return len(key) < 32 or len(set(key)) < 8


def _check_broker(config: Config) -> None:
    """Raise ConfigError for a URL that no client could use, or a name that does not fit
    into a path of the API.
    """
    if not is_broker_url(config.broker_url):
        raise ConfigError(
            f"CATMQ_BROKER_URL must look like http://host:port, not {config.broker_url!r}."
        )
    if not BROKER_NAME.fullmatch(config.broker_name):
        raise ConfigError(
            "CATMQ_BROKER_NAME must have 1 to 200 characters from A-Z a-z 0-9 . _ : - and "
            f"begin with a letter or digit, not {config.broker_name!r}."
        )


def _with_address(config: Config) -> Config:
    """Fill in the settings that are derived from `bind` and the host name, if they are not
    set: name and URL of the broker, served host names, sender of mails.
    """
    host, colon, port = config.bind.rpartition(":")
    if not colon:
        host, port = config.bind, "8000"  # gunicorn's default
    elif ":" in host and not host.startswith("["):
        host = f"[{host}]"  # an IPv6 address
    machine = (
        re.sub(r"[^A-Za-z0-9._-]", "-", socket.gethostname()).strip("._-") or "localhost"
    )
    url = (
        config.broker_url or f"http://{machine if host in ALL_ADDRESSES else host}:{port}"
    ).rstrip("/")
    hosts = (*LOOPBACK, urlsplit(url).hostname or "") if host in LOOPBACK else ("*",)
    return replace(
        config,
        broker_name=config.broker_name or f"{machine}:{port.replace('/', '-')}",
        broker_url=url,
        mail_from=config.mail_from or f"catmq@{machine}",
        allowed_hosts=config.allowed_hosts or tuple(dict.fromkeys(hosts)),
    )


def _with_secrets(config: Config) -> Config:
    """Fill in the secrets that are not set, from files in the data directory.

    Raises ConfigError if they cannot be written or read there.
    """
    directory = config.data_dir
    try:
        return replace(
            config,
            secret_key=config.secret_key
            or _read_or_create(directory / "secret.key", make=secrets.token_urlsafe),
            encryption_keys=config.encryption_keys
            or _split(
                _read_or_create(
                    directory / "encryption.key",
                    make=lambda: Fernet.generate_key().decode(),
                )
            ),
        )
    except OSError as error:
        raise ConfigError(data_dir.describe_error(directory, error)) from None


def _read_or_create(path: Path, *, make: Callable[[], str]) -> str:
    """Return the secret in the file `path`, which is created at first use.

    Processes that create it at the same time all get the same secret.
    """
    if not path.exists():
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        draft = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
        handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            with os.fdopen(handle, "w") as file:
                file.write(make())
            # Fails if another process was first. A rename would overwrite its secret.
            os.link(draft, path)
        except FileExistsError:
            pass
        finally:
            draft.unlink()
    return path.read_text().strip()


try:
    config = load(os.environ)
except ConfigError as error:
    sys.exit(f"CatMQ: {error}")
