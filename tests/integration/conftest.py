"""The folder `mariadb` forces errors that only a server has: it runs in the MariaDB pass."""

from __future__ import annotations

from tests.support import environment

collect_ignore = [] if environment.ENGINE == "mysql" else ["mariadb"]
