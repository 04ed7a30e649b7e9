"""Files that are read again when they change."""

from pathlib import Path

import pytest
from structlog.testing import capture_logs

from server.rpc.security.errors import BadContent, BadSecurityFile
from server.rpc.security.reloaded_files import MAX_FILE_BYTES, ReloadedFiles


def whole(content: bytes) -> int:
    if content == b"mistake":
        raise KeyError("secret")
    try:
        return int(content)
    except ValueError:
        raise BadContent("must be a number") from None


def test_what_has_not_changed_is_not_parsed_again(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"1")
    files = ReloadedFiles((tmp_path / "file",), lambda content: [whole(content)])
    first = files.current
    files.refresh()
    assert files.current is first
    (tmp_path / "file").write_bytes(b"2")
    files.refresh()
    assert files.current == [2]


@pytest.mark.parametrize("bad", [b"x", b"mistake", b"0" * (MAX_FILE_BYTES + 1), None])
def test_a_file_that_goes_bad_is_told_of_once_and_passed_over_until_it_is_good(
    tmp_path: Path, bad: bytes | None
) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"1")
    files = ReloadedFiles((path,), whole)
    for good in (b"2", b"3"):
        path.unlink() if bad is None else path.write_bytes(bad)
        with capture_logs() as lines:
            files.refresh()
            files.refresh()
        (line,) = lines
        assert line["log_level"] == "error"
        assert line["problem"].startswith(str(path))
        assert "secret" not in line["problem"]
        assert files.current == int(good) - 1
        path.write_bytes(good)
        files.refresh()
        assert files.current == int(good)


def test_a_file_that_is_replaced_by_a_link_is_followed(tmp_path: Path) -> None:
    """As Kubernetes changes the files of a Secret."""
    (tmp_path / "old").write_bytes(b"1")
    (tmp_path / "new").write_bytes(b"2")
    (tmp_path / "file").symlink_to("old")
    files = ReloadedFiles((tmp_path / "file",), whole)
    (tmp_path / "successor").symlink_to("new")
    (tmp_path / "successor").rename(tmp_path / "file")
    files.refresh()
    assert files.current == 2


def test_a_bad_file_is_refused_at_first(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x")
    with pytest.raises(BadSecurityFile, match="file: must be a number"):
        ReloadedFiles((tmp_path / "file",), whole)
