"""Files that are read again when they change, such as certificates and tokens that somebody rotates."""

from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

import structlog

from server.rpc.security.errors import BadContent, BadSecurityFile

log = structlog.stdlib.get_logger("treadle.security")

MAX_FILE_BYTES = 4 << 20

Content = TypeVar("Content")


class ReloadedFiles(Generic[Content]):
    """What some files say together.

    `parse` takes their bytes, in the order of the paths, and raises BadContent. Raises BadSecurityFile where that fails
    at first. Files that go bad later are logged once, and what they said before holds until they are good again.

    `refresh` is for one thread at a time, `current` for all. It reads the files whole, since they are small: a time of
    modification does not tell two writes within one tick of the file system's clock apart.
    """

    def __init__(self, paths: tuple[Path, ...], parse: Callable[..., Content]) -> None:
        self._paths, self._parse = paths, parse
        self._complaint: str | None = None
        self._contents = self._read()
        self.current = self._parsed(self._contents)

    def refresh(self) -> None:
        try:
            contents = self._read()
            if contents == self._contents:
                self._complaint = None
                return
            self.current = self._parsed(contents)
        except BadSecurityFile as error:
            if str(error) != self._complaint:
                log.error("a changed file is passed over: what it said before holds", problem=str(error))
                self._complaint = str(error)
            return
        self._contents, self._complaint = contents, None
        log.info("changed files are in force", files=[str(path) for path in self._paths])

    def _read(self) -> tuple[bytes, ...]:
        return tuple(_read(path) for path in self._paths)

    def _parsed(self, contents: tuple[bytes, ...]) -> Content:
        try:
            return self._parse(*contents)
        except BadContent as error:
            problem = str(error)
        except Exception as error:  # a mistake in the parser, which must not end the reloading, nor tell a secret
            problem = f"cannot be parsed ({type(error).__name__})"
        raise BadSecurityFile(f"{', '.join(map(str, self._paths))}: {problem}")


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise BadSecurityFile(f"{path}: {error.strerror}") from error
    if len(content) > MAX_FILE_BYTES:
        raise BadSecurityFile(f"{path}: must have at most {MAX_FILE_BYTES} bytes")
    return content
