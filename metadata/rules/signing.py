"""Rule for the key that signs consumer ids and sessions."""

from __future__ import annotations

MIN_CHARS, MIN_VARIETY = 32, 8  # length, and different characters


def signing_key_problem(key: str) -> str:
    """Return what is wrong with a signing key, and how to make one; '' if nothing is.

    >>> signing_key_problem("x")[:50], signing_key_problem("0123456789abcdef" * 2)
    ('must be random, with at least 32 characters. Make ', '')
    """
    if len(key) >= MIN_CHARS and len(set(key)) >= MIN_VARIETY:
        return ""
    return (
        f"must be random, with at least {MIN_CHARS} characters. Make one: "
        'python3 -c "import secrets; print(secrets.token_urlsafe())"'
    )
