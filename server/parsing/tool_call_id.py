"""Ids of tool calls: 9 letters and digits, the form that Mistral's chat templates insist on and all others accept."""

import secrets
import string

LENGTH = 9
_ALPHABET = string.ascii_letters + string.digits


def new_tool_call_id() -> str:
    """Returns an id from the system's source of randomness; 62**9 make a collision in a conversation improbable."""
    return "".join(secrets.choice(_ALPHABET) for _ in range(LENGTH))
