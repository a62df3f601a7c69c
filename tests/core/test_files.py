from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedstill.core.errors import InputError, RunError
from fedstill.core.files import (
    append_line,
    check_regular,
    digest_of,
    disk_trouble,
    file_digest,
    from_home,
    parse_json,
    read_file,
    read_json,
    read_text_file,
    sweep_temporaries,
    writable_file,
    writable_folder,
    write_atomically,
    write_json,
    write_output,
    write_private,
)
from fedstill.runtime.run_folder import RunFolder


def test_a_file_is_written_and_replaced_and_nothing_else_is_left(tmp_path: Path) -> None:
    path = tmp_path / "state"
    write_atomically(path, b"old")
    write_atomically(path, b"new")
    assert path.read_bytes() == b"new"
    assert os.listdir(tmp_path) == ["state"]


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_failure_at_any_point_leaves_the_old_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    path = tmp_path / "state"
    path.write_bytes(b"old")

    def fails(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, call, fails)
    with pytest.raises(RunError, match="the disk is full"):
        write_atomically(path, b"new")
    monkeypatch.undo()
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["state"]


def test_the_bytes_are_on_the_disk_before_the_name_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    fsync, replace = os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda descriptor: (calls.append("fsync"), fsync(descriptor)))
    monkeypatch.setattr(os, "replace", lambda *paths: (calls.append("replace"), replace(*paths)))
    write_atomically(tmp_path / "state", b"x")
    assert calls == ["fsync", "replace", "fsync"]


def test_a_missing_folder_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(RunError) as caught:
        write_atomically(tmp_path / "gone" / "state", b"x")
    assert str(tmp_path / "gone" / "state") in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_folder_in_place_of_the_file_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    with pytest.raises(RunError, match="cannot write"):
        write_atomically(tmp_path / "state", b"x")
    assert os.listdir(tmp_path) == ["state"]


def test_lines_are_appended(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    append_line(path, b"one\n")
    append_line(path, b"two\n")
    assert path.read_bytes() == b"one\ntwo\n"


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs pipes")
def test_nothing_is_appended_to_a_pipe(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "journal")
    with pytest.raises(RunError, match="journal is a pipe, and no file: remove it"):
        append_line(tmp_path / "journal", b"line\n")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_says_so_and_what_to_do() -> None:
    with pytest.raises(RunError) as caught:
        append_line(Path("/dev/full"), b"line\n")
    assert str(caught.value) == (
        "cannot write /dev/full: the disk is full: free some space,"
        " then run the same command again to go on from the last round"
    )


def test_other_trouble_is_told_in_the_systems_words() -> None:
    text = str(disk_trouble(Path("x"), OSError(errno.EROFS, "Read-only file system")))
    assert "Read-only file system" in text
    assert "disk is full" not in text
    assert "quota" in str(disk_trouble(Path("x"), OSError("quota")))  # an error without a number


def test_a_folder_is_made_and_probed_and_left_empty(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"
    assert writable_folder(folder) == folder
    assert folder.is_dir()
    assert os.listdir(folder) == []
    assert writable_folder(folder) == folder


@pytest.mark.parametrize("place", ["file", "file/below"])
def test_a_file_in_place_of_a_folder_is_refused(tmp_path: Path, place: str) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(InputError, match=r"cannot write to the folder .*; choose another one"):
        writable_folder(tmp_path / place)


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs /proc")
def test_an_unwritable_folder_is_refused() -> None:
    with pytest.raises(InputError, match="cannot write to the folder"):
        writable_folder(Path("/proc/self"))


def test_a_folder_in_place_of_the_file_is_refused_and_folders_above_it_are_made(tmp_path: Path) -> None:
    page = tmp_path / "new" / "page.md"
    assert writable_file(page) == page
    assert os.listdir(tmp_path / "new") == []
    with pytest.raises(InputError, match="new is a folder: name a file in it"):
        writable_file(tmp_path / "new")


def test_a_file_in_place_of_the_folder_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(RunError, match="cannot write"):
        write_atomically(tmp_path / "file" / "inner", b"x")


def test_what_killed_writers_left_is_swept_of_one_file_or_of_all(tmp_path: Path) -> None:
    for name in (".a[1].json.7.tmp", ".b.json.8.tmp", "a.tmp", "b.json"):
        (tmp_path / name).write_bytes(b"")
    sweep_temporaries(tmp_path, of="a[1].json")
    assert sorted(os.listdir(tmp_path)) == [".b.json.8.tmp", "a.tmp", "b.json"]
    sweep_temporaries(tmp_path)
    assert sorted(os.listdir(tmp_path)) == ["a.tmp", "b.json"]
    sweep_temporaries(tmp_path / "nowhere")


def test_home_is_found_and_what_cannot_be_a_path_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/somewhere")
    assert from_home("~/data") == Path("/somewhere/data")
    assert from_home(Path("nowhere/at/all")) == Path("nowhere/at/all")
    with pytest.raises(InputError, match=r"~nosuchuser/x.npz cannot be reached: Could not determine home directory"):
        from_home("~nosuchuser/x.npz")
    with pytest.raises(InputError, match="cannot be reached: File name too long"):
        from_home("x" * 300)


@pytest.mark.skipif(os.name != "posix", reason="modes are POSIX")
def test_private_files_are_private_from_their_first_byte(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "key"
    modes = []
    sync = os.fsync
    monkeypatch.setattr(os, "fsync", lambda file: (modes.append(os.fstat(file).st_mode & 0o777), sync(file)))
    write_private(path, b"old")
    write_atomically(path, b"new", private=True)
    assert path.read_bytes() == b"new"
    assert path.stat().st_mode & 0o777 == 0o600
    assert modes[:2] == [0o600, 0o600], "the drafts too"
    with pytest.raises(FileExistsError):
        write_private(path, b"another")


def test_an_interruption_leaves_no_draft(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_atomically(tmp_path / "state", b"x")
    assert os.listdir(tmp_path) == []


def test_a_file_that_somebody_named_and_cannot_be_written_is_bad_input(tmp_path: Path) -> None:
    write_output(tmp_path / "page", b"x")
    assert (tmp_path / "page").read_bytes() == b"x"
    with pytest.raises(InputError, match=r"nowhere/page cannot be written: No such file or directory$"):
        write_output(tmp_path / "nowhere" / "page", b"x")


def test_json_is_read_as_written_and_damage_is_none(tmp_path: Path) -> None:
    path = tmp_path / "facts.json"
    assert read_json(path) is None
    write_json(path, {"a": [1, "ü"]})
    assert read_json(path) == {"a": [1, "ü"]}
    assert path.read_bytes().endswith(b"}\n")
    path.write_text('{"a"')
    assert read_json(path) is None
    path.write_text("[" * 100_000)
    assert read_json(path) is None


def test_digests_of_files(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"abc")
    assert file_digest(tmp_path / "a") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert digest_of(b"") == ""
    assert file_digest(tmp_path / "b") is None


DEEP = "[" * 100_000


def pipe(path: Path) -> None:
    os.mkfifo(path)


def loop(path: Path) -> None:
    path.symlink_to(path.name)


def device(path: Path) -> None:
    path.symlink_to("/dev/zero")


SPECIAL: list[Any] = [pipe, loop, device]
posix = pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no pipes among its files")


@posix
@pytest.mark.parametrize("make", SPECIAL)
@pytest.mark.parametrize("read", [read_file, read_text_file, read_json, check_regular])
def test_special_files_are_refused_at_once(read: Callable[[Path], Any], make: Any, tmp_path: Path) -> None:
    make(tmp_path / "file.json")
    with pytest.raises(InputError, match=r"file.json is a (pipe, a device or a socket|link that leads back to itself)"):
        read(tmp_path / "file.json")


def test_missing_files_and_folders_are_what_they_were(tmp_path: Path) -> None:
    assert read_json(tmp_path / "missing") is None
    check_regular(tmp_path / "missing")
    check_regular(tmp_path)
    with pytest.raises(IsADirectoryError):
        read_file(tmp_path)
    (tmp_path / "text").write_bytes(b"a\r\nb")
    assert read_text_file(tmp_path / "text") == "a\nb"
    with pytest.raises(ValueError, match="it is nested too deeply"):
        parse_json(DEEP)


@posix
@pytest.mark.parametrize("make", SPECIAL)
@pytest.mark.parametrize("name", ["config.json", "journal.jsonl"])
def test_in_a_runs_folder(name: str, make: Any, tmp_path: Path) -> None:
    make(tmp_path / name)
    with pytest.raises(InputError, match=name):
        RunFolder(tmp_path).config() if name == "config.json" else RunFolder(tmp_path).journal()
