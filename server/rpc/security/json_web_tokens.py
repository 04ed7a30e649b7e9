"""JSON Web Tokens (RFC 7519), verified with the public keys of a JSON Web Key Set (RFC 7517).

A token must be signed by a key of the set with that key's own algorithm, for our audience, by the issuer where one is
set; must bear `exp` and `sub`; and tells its scopes as RFC 8693 does, in `scope`, joined by spaces.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jwt

from server.rpc.errors import ExpiredCredential, WrongCredential
from server.rpc.security.caller import Caller, Proof, Scope, is_name
from server.rpc.security.errors import BadContent

ALGORITHMS = frozenset({"RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "EdDSA"})
"""Asymmetric all: with a symmetric one, who can verify a token could make it. A signature of ES512 takes more than a
millisecond, which anybody's forgeries would take of the event loop."""
LEEWAY = 10.0
"""Seconds that clocks may differ."""
PRIVATE_MEMBERS = {"d", "k"}
"""Of a JSON Web Key: the secret of a private one, and of a symmetric one."""


class KeySet:
    """The keys of a JSON Web Key Set that can verify signatures."""

    def __init__(self, keys: tuple[jwt.PyJWK, ...]) -> None:
        self._keys = keys

    @classmethod
    def parse(cls, content: bytes) -> "KeySet":
        """Passes over keys for other uses. Raises BadContent, which tells nothing of a key."""
        try:
            members = json.loads(content)["keys"]
            usable = [member for member in members if member.get("use", "sig") == "sig"]
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise BadContent("must be a JSON Web Key Set") from None
        keys = tuple(_key(number, member) for number, member in enumerate(usable, start=1))
        if not keys:
            raise BadContent("has no key that signs")
        if len(keys) > 1 and len({key.key_id for key in keys} - {None}) < len(keys):
            raise BadContent("must give each of several keys a kid of its own")
        return cls(keys)

    def key(self, key_id: str | None) -> jwt.PyJWK | None:
        """A token may leave out the id of an only key."""
        if key_id is None:
            return self._keys[0] if len(self._keys) == 1 else None
        return next((key for key in self._keys if key.key_id == key_id), None)


def _key(number: int, member: Mapping[str, Any]) -> jwt.PyJWK:
    if PRIVATE_MEMBERS & member.keys():
        raise BadContent(f"signing key {number} has a secret in it: only public keys belong here")
    if "alg" in member and member["alg"] not in ALGORITHMS:
        raise BadContent(f"signing key {number} has an algorithm that is not one of {', '.join(sorted(ALGORITHMS))}")
    try:
        key = jwt.PyJWK(dict(member))
    except (jwt.PyJWTError, ValueError, TypeError, AttributeError):
        key = None
    if key is None or key.algorithm_name not in ALGORITHMS:
        raise BadContent(f"signing key {number} is of a kind this server does not know")
    return key


@dataclass(frozen=True, slots=True)
class Verifier:
    audience: str
    issuer: str | None

    def caller(self, token: str, keys: KeySet) -> Caller:
        """Raises WrongCredential or ExpiredCredential."""
        try:
            claims = self._claims(token, keys)
        except jwt.ExpiredSignatureError:
            raise ExpiredCredential("the token has expired") from None
        except jwt.InvalidAudienceError:
            raise WrongCredential("the token is not for this server's audience") from None
        except jwt.InvalidIssuerError:
            raise WrongCredential("the token is not of this server's issuer") from None
        except jwt.ImmatureSignatureError:
            raise WrongCredential("the token is not valid yet") from None
        except (jwt.PyJWTError, ValueError, TypeError, AttributeError, RecursionError):
            raise WrongCredential("the token is not one this server takes") from None
        subject, scope = claims["sub"], claims.get("scope", "")
        if not isinstance(subject, str) or not is_name(subject) or not isinstance(scope, str):
            raise WrongCredential("the token's sub or scope is not a text this server takes")
        return Caller(subject, Proof.JWT, frozenset(each for each in Scope if each.value in scope.split()))

    def _claims(self, token: str, keys: KeySet) -> dict[str, Any]:
        key = keys.key(jwt.get_unverified_header(token).get("kid"))
        if key is None:
            raise jwt.InvalidTokenError("no key of that id")
        return jwt.decode(
            token,
            key,
            algorithms=[key.algorithm_name],
            audience=self.audience,
            issuer=self.issuer,
            leeway=LEEWAY,
            options={"require": ["exp", "aud", "sub", *(("iss",) if self.issuer is not None else ())]},
        )
