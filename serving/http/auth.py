"""Who asks: keys and the tenants they stand for. A key is found by its keyed digest, so that the time it takes tells
nothing about the keys there are.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Iterable, Mapping
from hashlib import blake2b
from pathlib import Path

from placement.errors import InputError
from placement.files import read_bytes

ADMIN = "admin"
"""The tenant whose key opens /admin in a file of keys."""
KEYS_VARIABLE = "PENSTOCK_API_KEYS"
ADMIN_VARIABLE = "PENSTOCK_ADMIN_KEY"
SHORTEST_KEY = 8
_LONGEST_KEY = 512


class Keys:
    """Tenants by key, and the key of /admin. Without any tenant's key, anybody may ask; without an admin key, /admin is
    closed. `may_anybody_look`: at the dashboard, without a key."""

    def __init__(
        self, tenants: Mapping[str, str] | None = None, admin: str | None = None, *, may_anybody_look: bool = False
    ) -> None:
        self._secret = secrets.token_bytes(32)
        self._tenants = {self._digest(key.encode()): tenant for key, tenant in (tenants or {}).items()}
        self._admin = None if admin is None else self._digest(admin.encode())
        self.is_open = not self._tenants
        self.has_admin = self._admin is not None
        self.may_anybody_look = may_anybody_look

    def tenant(self, authorization: bytes | None) -> str | None:
        """Of an Authorization header; None when no known key is in it."""
        digest = self._bearer(authorization)
        if digest is None:
            return None
        tenant = self._tenants.get(digest)
        return ADMIN if tenant is None and self._is_admin(digest) else tenant

    def is_admin(self, authorization: bytes | None) -> bool:
        digest = self._bearer(authorization)
        return digest is not None and self._is_admin(digest)

    def _is_admin(self, digest: bytes) -> bool:
        return self._admin is not None and hmac.compare_digest(self._admin, digest)

    def _bearer(self, authorization: bytes | None) -> bytes | None:
        if authorization is None or authorization[:7].lower() != b"bearer ":
            return None
        key = authorization[7:].strip()
        return self._digest(key) if 0 < len(key) <= _LONGEST_KEY else None

    def _digest(self, key: bytes) -> bytes:
        # Keyed with a secret of this process: nobody outside can steer which digests are compared or looked up.
        return blake2b(key, digest_size=32, key=self._secret).digest()


def read_keys(file: Path | None, environment: Mapping[str, str]) -> Keys:
    """Keys of the file (a key and a tenant's name on each line; tenant `admin` opens /admin) and of the environment
    (PENSTOCK_API_KEYS: the same, separated by commas; PENSTOCK_ADMIN_KEY)."""
    found: dict[str, str] = {}
    if file is not None:
        try:
            lines = read_bytes(file).decode().splitlines()
        except UnicodeDecodeError as error:
            raise InputError(f"{file}: not valid UTF-8") from error
        _take(found, ((f"{file}, line {number}", line) for number, line in enumerate(lines, 1)))
        if not found:
            raise InputError(f"{file}: no keys; one key a line is needed, and a tenant's name after it")
    given = environment.get(KEYS_VARIABLE, "")
    _take(found, ((f"{KEYS_VARIABLE}, entry {number}", entry) for number, entry in enumerate(given.split(","), 1)))
    admins = [key for key, tenant in found.items() if tenant == ADMIN]
    if environment.get(ADMIN_VARIABLE):
        admins.append(_checked(environment[ADMIN_VARIABLE], ADMIN_VARIABLE))
    if len(set(admins)) > 1:
        raise InputError(f"two admin keys; give one, in the file of keys or in {ADMIN_VARIABLE}")
    tenants = {key: tenant for key, tenant in found.items() if tenant != ADMIN}
    if admins and admins[0] in tenants:
        raise InputError(f"the admin key is also a key of tenant {tenants[admins[0]]!r}; they must differ")
    return Keys(tenants, admins[0] if admins else None)


def _take(found: dict[str, str], lines: Iterable[tuple[str, str]]) -> None:
    for where, line in lines:
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        if len(words) > 2:
            raise InputError(f"{where}: {len(words)} words; a key and a tenant's name are needed")
        key, tenant = _checked(words[0], where), words[1] if len(words) > 1 else "default"
        if found.setdefault(key, tenant) != tenant:
            raise InputError(f"{where}: the same key for tenants {found[key]!r} and {tenant!r}")


def _checked(key: str, where: str) -> str:
    if not SHORTEST_KEY <= len(key.encode()) <= _LONGEST_KEY:
        raise InputError(f"{where}: a key of {len(key)} characters; {SHORTEST_KEY} to {_LONGEST_KEY} are needed")
    return key
