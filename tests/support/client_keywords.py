"""Write catmq_client/keywords.py, the typed options of producers and consumers.

    PYTHONPATH=client/src python -m tests.support.client_keywords

Type checkers need the options as a TypedDict, and the code of the client as a dataclass.
The dataclasses in catmq_client/options.py declare them; this module follows.
"""

from __future__ import annotations

import textwrap
from dataclasses import fields
from pathlib import Path

from catmq_client import options

PATH = Path(options.__file__).with_name("keywords.py")
HEAD = '''\
"""Types of the keyword arguments of producers and consumers: `**options: Unpack[…]`.

Written by `python -m tests.support.client_keywords` from options.py, which declares them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, TypedDict

from catmq_client.message import AssignedQueue
'''


def module_text() -> str:
    """Return the text of keywords.py."""
    parts = [HEAD]
    for options_class in (
        options.ProducerOptions,
        options.ConsumerOptions,
        options.ShareConsumerOptions,
    ):
        owner = options_class.__name__.removesuffix("Options")
        parts.append(
            f"\n\nclass {owner}Keywords(TypedDict, total=False):\n"
            f'    """Options of a {owner}, as keyword arguments."""\n'
        )
        for option in fields(options_class):
            meaning = option.metadata["declaration"].meaning
            default = f"Default: {option.default!r}{options.unit_and_range(option)}."
            hint = option.type.replace("'", '"')  # as the formatter has it
            # Editors show the text below a key when it is used.
            lines = textwrap.wrap(f'"""{meaning} {default}', 92 - 4)
            # A long text ends with the quotes on a line of their own, as ruff has it.
            text = "\n".join(lines)
            text += '"""' if len(lines) == 1 and len(text) <= 92 - 7 else '\n"""'
            parts.append(f"\n    {option.name}: {hint}\n")
            parts.append(textwrap.indent(text, "    ") + "\n")
    return "".join(parts)


if __name__ == "__main__":
    PATH.write_text(module_text())
