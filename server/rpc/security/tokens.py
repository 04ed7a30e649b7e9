"""Bearer tokens, from a file that holds their hashes.

A line is `name:hash` or `name:hash:scopes`: the SHA-256 of the token in hexadecimal, and scopes joined by commas
(`generate` where there are none). Blank lines and those that begin with `#` are passed over. A name may have several
lines: an old token and its successor. A token is long and random (`new_token.py`), so a plain hash of it cannot be
searched, and needs no salt.
"""

import hashlib
import hmac
import re
from dataclasses import dataclass

from server.rpc.security.caller import Caller, Proof, Scope
from server.rpc.security.errors import BadContent

MAX_TOKENS = 1000
"""All are compared on each call, in about a tenth of a microsecond each."""

NAME = re.compile(r"[A-Za-z0-9._@-]{1,64}")
_HASH = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class TokenHash:
    """A token's SHA-256 and whose it is."""

    digest: bytes
    caller: Caller


class Tokens:
    def __init__(self, hashes: tuple[TokenHash, ...]) -> None:
        self._hashes = hashes

    @classmethod
    def parse(cls, content: bytes) -> "Tokens":
        """Raises BadContent naming the line, and nothing of what is in it."""
        try:
            lines = content.decode().splitlines()
        except UnicodeDecodeError:
            raise BadContent("must be UTF-8 text") from None
        numbered = [(number, line.strip()) for number, line in enumerate(lines, start=1)]
        hashes = tuple(_token_hash(number, line) for number, line in numbered if line and not line.startswith("#"))
        if len(hashes) > MAX_TOKENS:
            raise BadContent(f"has {len(hashes)} tokens: must be at most {MAX_TOKENS}")
        if len({each.digest for each in hashes}) < len(hashes):
            raise BadContent("has the same hash twice")
        return cls(hashes)

    def caller(self, token: str) -> Caller | None:
        """Whose token it is. Takes the same time whichever it is, and whether it is one at all."""
        digest = hashlib.sha256(token.encode(errors="replace")).digest()
        found = None
        for each in self._hashes:
            if hmac.compare_digest(each.digest, digest):
                found = each.caller
        return found


def _token_hash(number: int, line: str) -> TokenHash:
    name, *rest = line.split(":")
    if len(rest) not in (1, 2) or not NAME.fullmatch(name) or not _HASH.fullmatch(rest[0]):
        limit = "a name, a SHA-256 in 64 lower-case hexadecimal digits, and optional scopes"
        raise BadContent(f"line {number} must be name:hash or name:hash:scopes, {limit}")
    try:
        scopes = frozenset(map(Scope, rest[1].split(","))) if len(rest) > 1 else frozenset({Scope.GENERATE})
    except ValueError:
        known = ", ".join(scope.value for scope in Scope)
        raise BadContent(f"line {number} has an unknown scope: must be of {known}, joined by commas") from None
    return TokenHash(bytes.fromhex(rest[0]), Caller(name, Proof.TOKEN, scopes))
