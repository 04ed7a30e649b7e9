"""The version of the installed package."""

from importlib import metadata


def _installed() -> str:
    try:
        return metadata.version("treadle")
    except metadata.PackageNotFoundError:  # the source tree is on the path and nothing is installed
        return "unknown"


__version__ = _installed()
