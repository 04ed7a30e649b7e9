"""The request id: the client's name for a call, or one of our own making."""

import re
import secrets

from server.engine.errors import InvalidArgument

METADATA_KEY = "x-request-id"
MAX_LENGTH = 128

_VALID = re.compile(rf"[\x20-\x7e]{{1,{MAX_LENGTH}}}")


def new_request_id() -> str:
    return secrets.token_hex(8)


def check_request_id(field: str, value: str) -> str:
    """Returns the value. Raises InvalidArgument where it is not 1 to 128 printable ASCII characters."""
    if not _VALID.fullmatch(value):
        raise InvalidArgument(field, ascii(value), f"must be 1 to {MAX_LENGTH} printable ASCII characters")
    return value
