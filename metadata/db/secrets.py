"""Encryption of passwords in the database: Fernet with several keys, so that keys can be
rotated.
"""

from __future__ import annotations

from cryptography.fernet import Fernet, InvalidToken, MultiFernet

from metadata.config import config


class Undecryptable(ValueError):
    """The text was encrypted with none of CATMQ_ENCRYPTION_KEYS."""


def _fernet() -> MultiFernet:
    return MultiFernet([Fernet(key) for key in config.encryption_keys])


def encrypt(text: str) -> str:
    """Encrypt a text with the newest key. '' stays ''."""
    return _fernet().encrypt(text.encode()).decode() if text else ""


def decrypt(text: str) -> str:
    """Decrypt a text with the key that fits. '' stays ''. Raises Undecryptable."""
    if not text:
        return ""
    try:
        return _fernet().decrypt(text.encode()).decode()
    except InvalidToken:
        raise Undecryptable(
            "A password cannot be decrypted with the keys of this process. Give the process the "
            "encryption.key or CATMQ_ENCRYPTION_KEYS of the installation, or set the "
            "password anew with "
            "manage.py set_node NODE --username USER."
        ) from None
