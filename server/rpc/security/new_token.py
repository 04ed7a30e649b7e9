"""Makes a bearer token: `python -m server.rpc.security.new_token alice >> tokens`.

Standard output gets the line for the file of tokens, standard error the token itself, which is kept nowhere.
"""

import argparse
import hashlib
import secrets
import sys
from collections.abc import Sequence

from server.rpc.security.caller import Scope
from server.rpc.security.tokens import NAME

TOKEN_BYTES = 32
PREFIX = "treadle_"
"""By which people, and programs that search for leaked secrets, know what it is."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Ends the process with status 2 where the arguments are wrong."""
    parser = argparse.ArgumentParser(prog="python -m server.rpc.security.new_token", description=__doc__)
    parser.add_argument("name", metavar="NAME", help="whose token it is: letters, digits and . _ @ -")
    parser.add_argument("--scopes", metavar="SCOPES", default="generate", help="generate, admin, or both with a comma")
    given = parser.parse_args(arguments)
    if not NAME.fullmatch(given.name):
        parser.error(f"NAME is {given.name!r}: must be 1 to 64 letters, digits and . _ @ -")
    if not {scope.value for scope in Scope}.issuperset(given.scopes.split(",")):
        parser.error(f"--scopes is {given.scopes!r}: must be generate, admin, or both with a comma")
    token = PREFIX + secrets.token_urlsafe(TOKEN_BYTES)
    print(f"The token of {given.name}, shown this once:\n{token}", file=sys.stderr)
    print(f"{given.name}:{hashlib.sha256(token.encode()).hexdigest()}:{given.scopes}")


if __name__ == "__main__":
    main()
