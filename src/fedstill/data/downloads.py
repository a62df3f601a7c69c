"""Public data sets that `fedstill data get` downloads: addresses, checksums, licences and citations.

Checksums are those that the publishers state. A download continues where it was cut, and takes the data set's name only
once every file is complete and its checksum is right.
"""

from __future__ import annotations

import logging
import os
import shutil
import tarfile
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import md5
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from time import sleep

from fedstill.core.errors import InputError, did_you_mean
from fedstill.core.files import writable_folder
from fedstill.core.locks import take_lock
from fedstill.data.bundle import datasets
from fedstill.data.roots import data_root

_log = logging.getLogger(__name__)

_PIECE = 1 << 20
_TRIES = 4
_PAUSE = 1.0  # seconds before the first of the other tries; each waits twice as long
_TIMEOUT = 60.0
_BUSY = frozenset({429, 500, 502, 503, 504})  # what a server says that may answer soon
Progress = Callable[[str, int, int | None], None]  # file, bytes so far, bytes in all where they are known


@dataclass(frozen=True)
class RemoteFile:
    """One file: its address, its name here and its MD5."""

    url: str
    name: str
    md5: str


@dataclass(frozen=True)
class Download:
    """The files of a data set, and what its users must know."""

    files: tuple[RemoteFile, ...]
    licence: str
    citation: str
    unpack: bool = False  # a .tar.gz file


def _idx(base: str, *digests: str) -> tuple[RemoteFile, ...]:
    names = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
    return tuple(
        RemoteFile(f"{base}{name}.gz", f"{name}.gz", digest) for name, digest in zip(names, digests, strict=True)
    )


def _archive(address: str, digest: str) -> tuple[RemoteFile, ...]:
    return (RemoteFile(address, address.rpartition("/")[2], digest),)


_MEDMNIST = "https://zenodo.org/records/10519652/files/"
_MED_CITATION = (
    "Yang et al., MedMNIST v2 - A large-scale lightweight benchmark for 2D and 3D biomedical image classification,"
    " Scientific Data 10, 41 (2023), https://doi.org/10.1038/s41597-022-01721-8"
)
_MED_DIGESTS = {
    "bloodmnist": "7053d0359d879ad8a5505303e11de1dc",
    "breastmnist": "750601b1f35ba3300ea97c75c52ff8f6",
    "dermamnist": "0744692d530f8e62ec473284d019b0c7",
    "octmnist": "c68d92d5b585d8d81f7112f81e2d0842",
    "organamnist": "68e3f8846a6bd62f0c9bf841c0d9eacc",
    "organcmnist": "0afa5834fb105f7705a7d93372119a21",
    "organsmnist": "e5c39f1af030238290b9557d9503af9d",
    "pathmnist": "a8b06965200029087d5bd730944a56c1",
    "pneumoniamnist": "28209eda62fecd6e6a2d98b1501bb15f",
    "retinamnist": "bd4c0672f1bba3e3a89f0e4e876791e4",
    "tissuemnist": "ebe78ee8b05294063de985d821c1c34b",
}
_CIFAR_CITATION = "Krizhevsky, Learning multiple layers of features from tiny images (2009), https://www.cs.toronto.edu/~kriz/cifar.html"

DOWNLOADS: dict[str, Download] = {
    "mnist": Download(
        _idx(
            "https://ossci-datasets.s3.amazonaws.com/mnist/",
            "f68b3c2dcbeaaa9fbdd348bbdeb94873",
            "d53e105ee54ea40749a09fcbcd1e9432",
            "9fb629c4189551a2d022fa330f9573f3",
            "ec29112dd5afa0611ce80d1b7f02629c",
        ),
        "its authors state none",
        "LeCun, Cortes and Burges, The MNIST database of handwritten digits, http://yann.lecun.com/exdb/mnist/",
    ),
    "fashion-mnist": Download(
        _idx(
            "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
            "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
            "25c81989df183df01b3e8a0aad5dffbe",
            "bef4ecab320f06d8554ea6380940ec79",
            "bb300cfdad3c16e7a12a480ee83cd310",
        ),
        "MIT",
        "Xiao, Rasul and Vollgraf, Fashion-MNIST: a novel image dataset for benchmarking machine learning algorithms"
        " (2017), https://arxiv.org/abs/1708.07747",
    ),
    "cifar10": Download(
        _archive("https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz", "c58f30108f718f92721af3b95e74349a"),
        "its authors state none",
        _CIFAR_CITATION,
        unpack=True,
    ),
    "cifar100": Download(
        _archive("https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz", "eb9058c3a382ffc7106e4002c42a8d85"),
        "its authors state none",
        _CIFAR_CITATION,
        unpack=True,
    ),
    **{
        name: Download(
            (RemoteFile(f"{_MEDMNIST}{name}.npz?download=1", f"{name}.npz", digest),),
            "CC BY-NC 4.0" if name == "dermamnist" else "CC BY 4.0",
            _MED_CITATION,
        )
        for name, digest in _MED_DIGESTS.items()
    },
}


def download_of(name: str) -> Download:
    """What is known about a download; for other data sets, an error that says where they can be had."""
    if name in DOWNLOADS:
        return DOWNLOADS[name]
    if name in datasets:
        how = getattr(datasets[name], "get", None)
        if how is None:
            raise InputError(f"{name} is made by code and needs no download")
        raise InputError(f"{name} cannot be downloaded from here: {how}; `fedstill data add {name} PATH` records it")
    raise InputError(f"unknown data set {name!r}: {did_you_mean(name, DOWNLOADS)}")


def fetch(name: str, root: Path | None = None, mirror: str | None = None, progress: Progress | None = None) -> Path:
    """Download a data set into the data root; the folder that then holds it, which may have been there before.

    `mirror` is an address in which files have their usual names; checksums are the same.
    """
    wanted = download_of(name)
    if mirror is not None and not mirror.startswith(("http://", "https://")):
        raise InputError(f"{mirror} is no address that can be downloaded from: give one that begins with https://")
    place = data_root(root)
    target = place / name
    if target.exists():
        return target
    partial = writable_folder(place) / f".{name}.download"
    partial.mkdir(exist_ok=True)
    lock = take_lock(partial / "lock")
    if lock is None:
        raise InputError(f"another process downloads {name} to {place}: wait for it")
    try:
        for file in wanted.files:
            address = file.url if mirror is None else f"{mirror.rstrip('/')}/{file.name}"
            _fetch_file(address, partial / file.name, file.md5, progress or _silent)
        ready = partial / "ready"
        shutil.rmtree(ready, ignore_errors=True)
        ready.mkdir()
        for file in wanted.files:
            if wanted.unpack:
                _unpack(partial / file.name, ready)
            else:
                os.replace(partial / file.name, ready / file.name)
        os.replace(ready, target)
    finally:
        lock.release()  # at once: the next attempt may be made by this process
    shutil.rmtree(partial, ignore_errors=True)
    return target


def _silent(file: str, done: int, total: int | None) -> None:
    """No progress is shown."""


def _fetch_file(address: str, path: Path, digest: str, progress: Progress) -> None:
    """Download one file under its name, unless an earlier attempt has."""
    if path.is_file() and _md5(path) == digest:
        return
    part = path.with_name(f"{path.name}.part")
    for attempt in range(_TRIES):
        try:
            _continue(address, part, path.name, progress)
            break
        except urllib.error.HTTPError as error:
            if error.code not in _BUSY or attempt == _TRIES - 1:
                raise InputError(
                    f"{address} cannot be downloaded: {error.code} {error.reason}; try again later, or name another"
                    " address of the files with --mirror"
                ) from None
            _log.info("%s is busy (%d): it is asked again", address, error.code)
            sleep(_PAUSE * 2**attempt)
        except (OSError, HTTPException) as error:
            if attempt == _TRIES - 1:
                raise InputError(
                    f"{address} cannot be downloaded ({error}): run the command again, and it goes on from"
                    f" {part.stat().st_size if part.exists() else 0:,} bytes"
                ) from None
            _log.info("the download of %s was cut: it goes on", address, exc_info=True)
            sleep(_PAUSE * 2**attempt)
    if (found := _md5(part)) != digest:
        part.unlink()
        raise InputError(
            f"{address} is not what its publishers state: its MD5 is {found}, not {digest}; it was deleted, so run the"
            " command again, or name another address with --mirror"
        )
    os.replace(part, path)


def _continue(address: str, part: Path, name: str, progress: Progress) -> None:
    """Read what is missing of a file; a server that cannot continue sends all of it."""
    done = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(address, headers={"Range": f"bytes={done}-"} if done else {})
    try:
        response: HTTPResponse = urllib.request.urlopen(request, timeout=_TIMEOUT)
    except urllib.error.HTTPError as error:
        if error.code != 416:
            raise
        return  # there is nothing after what we have
    with response:
        if response.status != 206 or not _begins_at(response, done):
            done = 0
        length = response.headers.get("Content-Length")
        total = None if length is None else done + int(length)
        with part.open("ab" if done else "wb") as file:
            while piece := response.read(_PIECE):
                file.write(piece)
                done += len(piece)
                progress(name, done, total)
    if total is not None and done < total:
        raise ConnectionError(f"the connection ended after {done:,} of {total:,} bytes")


def _begins_at(response: HTTPResponse, start: int) -> bool:
    """Whether a part of a file is the one that was asked for: some servers send all of it."""
    given = response.headers.get("Content-Range")
    return given is None or given.replace("=", " ").split()[-1].partition("-")[0] == str(start)


def _unpack(archive: Path, folder: Path) -> None:
    try:
        with tarfile.open(archive) as packed:
            packed.extractall(folder, filter="data")
    except (tarfile.TarError, OSError, EOFError) as error:
        raise InputError(f"{archive} cannot be unpacked ({error}): delete it and run the command again") from None


def _md5(path: Path) -> str:
    digest = md5(usedforsecurity=False)
    with path.open("rb") as file:
        while piece := file.read(_PIECE):
            digest.update(piece)
    return digest.hexdigest()
