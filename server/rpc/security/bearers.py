"""Whose the bearer token is that a call carries: one of the file of tokens, or a JSON Web Token."""

from collections.abc import Iterable

from server.rpc.errors import MissingCredential, WrongCredential
from server.rpc.security.caller import Caller
from server.rpc.security.json_web_tokens import KeySet, Verifier
from server.rpc.security.reloaded_files import ReloadedFiles
from server.rpc.security.tokens import Tokens

METADATA_KEY = "authorization"
SCHEME = "bearer"


class Bearers:
    def __init__(
        self, tokens: ReloadedFiles[Tokens] | None, keys: ReloadedFiles[KeySet] | None, verifier: Verifier | None
    ) -> None:
        self._tokens, self._keys, self._verifier = tokens, keys, verifier

    def caller(self, metadata: Iterable[tuple[str, str | bytes]]) -> Caller:
        """Raises MissingCredential, WrongCredential or ExpiredCredential."""
        token = _token(metadata)
        if self._tokens is not None and (known := self._tokens.current.caller(token)) is not None:
            return known
        if self._keys is not None and self._verifier is not None:
            return self._verifier.caller(token, self._keys.current)
        raise WrongCredential("the token is not one this server takes")


def _token(metadata: Iterable[tuple[str, str | bytes]]) -> str:
    values = [value for key, value in metadata if key == METADATA_KEY]
    if not values:
        raise MissingCredential("the call needs a bearer token in its `authorization` metadata")
    scheme, _, token = str(values[0]).partition(" ")
    if len(values) > 1 or scheme.lower() != SCHEME or not token.strip():
        raise WrongCredential("the `authorization` metadata must be one, of the form `Bearer TOKEN`")
    return token.strip()
