"""What can be wrong with the files that security is read from; with a call, see `server/rpc/errors.py`."""


class BadContent(Exception):
    """A file does not hold what it must; the message says what and where, and never what a secret is."""


class BadSecurityFile(Exception):
    """A file cannot be read or holds what it must not; the message names it."""
