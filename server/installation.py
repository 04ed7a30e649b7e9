"""What must be installed for the server to run, as the project's own metadata has it. Imports nothing of that."""

import re
from importlib.metadata import PackageNotFoundError, distribution, requires

PROJECT = "treadle"
EXTRA = "server"


def missing_packages() -> tuple[str, ...]:
    """The packages that the server needs and that are not installed, by their names on the package index."""
    try:
        requirements = requires(PROJECT) or []
    except PackageNotFoundError:
        return (PROJECT,)
    return tuple(name for name in map(_needed, requirements) if name is not None and not _is_installed(name))


def _needed(requirement: str) -> str | None:
    """The name in a requirement of the client or the server; None in one of any other extra, such as "dev"."""
    name = re.match(r"[A-Za-z0-9._-]+", requirement)
    extra = re.search(r"""extra\s*==\s*["']([^"']+)["']""", requirement)
    return name[0] if name and (extra is None or extra[1] == EXTRA) else None


def _is_installed(name: str) -> bool:
    try:
        distribution(name)
    except PackageNotFoundError:
        return False
    return True
