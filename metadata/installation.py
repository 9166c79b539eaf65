"""How this code is installed: in a checkout of the repository, or by the distribution
catmq-server in a virtual environment.

The two differ in the default data directory, in the program that runs commands, and in how
optional packages are installed. Texts for users name the programs of a checkout;
`name_programs` puts those of the other kind in their place.
"""

from __future__ import annotations

import re
from pathlib import Path

# The directory with the packages: the root of the checkout, or site-packages.
HOME = Path(__file__).resolve().parents[1]
CLIENT_SOURCE = HOME / "client" / "src"
IS_CHECKOUT = (CLIENT_SOURCE / "catmq_client" / "version.py").is_file()
# A venv may be read-only, and belongs to a release, so data does not lie in it.
DATA_DIR = HOME / "var" if IS_CHECKOUT else Path("/var/lib/catmq")
DISTRIBUTION = "catmq-server"
PROGRAM = "manage.py" if IS_CHECKOUT else "catmq-server"
# Programs of a checkout, and what an installed server has instead.
INSTALLED_PROGRAMS = {
    "script/setup --with-spark": "pip install 'catmq-server[spark]' in its environment",
    "script/server": "catmq-server serve",
    "python manage.py": "catmq-server",
    "manage.py": "catmq-server",
}
_PROGRAMS = re.compile("|".join(map(re.escape, INSTALLED_PROGRAMS)))


def name_programs(text: str, *, is_checkout: bool = IS_CHECKOUT) -> str:
    """Return a text for users in which the programs have the names of this installation.

    >>> name_programs("Run manage.py verify orders.", is_checkout=False)
    'Run catmq-server verify orders.'
    >>> name_programs("Run manage.py verify orders.", is_checkout=True)
    'Run manage.py verify orders.'
    """
    if is_checkout:
        return text
    return _PROGRAMS.sub(lambda program: INSTALLED_PROGRAMS[program[0]], text)
