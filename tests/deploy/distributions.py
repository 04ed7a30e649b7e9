"""What a release consists of."""

import tarfile
import zipfile
from dataclasses import dataclass
from pathlib import Path, PurePosixPath


@dataclass(frozen=True, slots=True)
class Distributions:
    archive: Path
    wheel: Path
    build_log: str

    def archived(self) -> set[str]:
        """The files of the source distribution, without its top directory."""
        with tarfile.open(self.archive) as archive:
            names = [member.name for member in archive.getmembers() if member.isfile()]
        return {str(PurePosixPath(*PurePosixPath(name).parts[1:])) for name in names}

    def packed(self) -> set[str]:
        """The files of the wheel."""
        with zipfile.ZipFile(self.wheel) as archive:
            return set(archive.namelist())
