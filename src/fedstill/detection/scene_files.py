"""Data sets of scenes in files: ScanNet and SUN RGB-D in VoteNet's layout, and the user's own archives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from fedstill.core.errors import InputError
from fedstill.data.bundle import Source, datasets
from fedstill.data.file_sources import FromFiles
from fedstill.data.findings import find_faults
from fedstill.data.layout import Samples
from fedstill.data.readers.raw import FileFindings, split_folders
from fedstill.detection.kitti import frames, kitti_home, read_kitti
from fedstill.detection.labelled_scans import has_boxes_beside, labelled_scans
from fedstill.detection.scene_archives import is_scene_archive, read_archives
from fedstill.detection.scene_sets import scene_samples, some_scenes
from fedstill.detection.scenes import Scenes
from fedstill.detection.votenet import PICTURES, POINTS, SCANS, read_scannet, read_sunrgbd

EXPECTED = (
    "a folder of scenes: VoteNet's *_vert.npy (ScanNet) or *_pc.npz (SUN RGB-D) with *_bbox.npy beside them, KITTI's "
    "velodyne, label_2 and calib, scans (.pcd .ply .las ...) with a .json of boxes each, or .npz files with points, "
    "boxes, labels and classes, in folders train and test if there are splits"
)


class ScenesFromFiles(FromFiles):
    """A loader for scenes: a bundle whose labels are per box."""

    expected = EXPECTED

    def open(self, source: Source, found: FileFindings) -> tuple[dict[str, Samples], tuple[str, ...]]:
        splits: dict[str, Scenes] = {}
        with found.collecting():
            splits = {part: scenes for part, scenes in read_scenes(self.locate(source), found).items() if len(scenes)}
        if not splits:
            return {}, ()
        found.notes += [note for scenes in splits.values() for note in scenes.notes]
        samples, classes = scene_samples(splits), next(iter(splits.values())).class_names
        find_faults(samples, classes, found)
        return samples, classes


def holds_scenes(path: Path) -> bool:
    """Whether a folder, or one directly below it, has scene files in one of the layouts; or whether a file is one."""
    if not path.is_dir():
        return path.suffix.lower() == ".npz" and is_scene_archive(path)
    if any(_holding(path, ending) for ending in (SCANS, PICTURES)) or kitti_home(path) is not None:
        return True
    if any(has_boxes_beside(scan) for place in (path, *_below(path)) for scan in labelled_scans(place)[:3]):
        return True
    archives = [archive for place in (path, *_below(path)) for archive in sorted(place.glob("*.npz"))[:1]]
    return any(map(is_scene_archive, archives))


def read_scenes(folder: Path, found: FileFindings) -> dict[str, Scenes]:
    """Scenes by split, in any supported layout; files without a split are split here."""
    if not folder.is_dir():
        raise InputError(f"{folder} is no folder of scenes; expected is {EXPECTED}")
    if scans := _holding(folder, SCANS):
        return _scannet(folder, scans[0], found)
    if places := _holding(folder, PICTURES):
        return _sunrgbd(places, found)
    if home := kitti_home(folder):
        return _kitti(folder, home, found)
    return _archives(folder, found)


def _scannet(home: Path, folder: Path, found: FileFindings) -> dict[str, Scenes]:
    """Lists of names define the training scans; they are in the folder, above it, or in `meta_data`."""
    here = {path.name.removesuffix(SCANS) for path in folder.glob(f"*{SCANS}")}
    places = [place for near in dict.fromkeys((home, folder, folder.parent)) for place in (near, near / "meta_data")]
    lists = {part: _named(places, f"scannetv2_{word}.txt") for part, word in (("train", "train"), ("test", "val"))}
    if any(names is None for names in lists.values()):
        # A room was often scanned several times, as scene0000_00, scene0000_01, ...: all are in one split.
        return _cut(read_scannet(folder, found=found), lambda name: name.partition("_")[0], found)
    splits: dict[str, Scenes] = {}
    for part, names in lists.items():
        there = [name for name in names or () if name in here]
        if len(there) < len(names or ()):
            found.notes.append(f"of {len(names or ()):,} {part} scans {len(there):,} are here")
        if there:
            splits[part] = read_scannet(folder, names=there, found=found)
    return splits


def _named(places: Sequence[Path], file: str) -> list[str] | None:
    """The lines of the first such file."""
    for path in (place / file for place in places):
        if path.is_file():
            return path.read_text(encoding="utf-8", errors="replace").split()
    return None


def _sunrgbd(places: list[Path], found: FileFindings) -> dict[str, Scenes]:
    """Folders called ..._train and ..._val; of two versions of annotations the first is used."""
    parts: dict[str, Path] = {}
    for place in places:
        word = place.name.lower().rpartition("_")[2]
        part = {"train": "train", "val": "test", "test": "test"}.get(word)
        if part in parts:
            found.notes.append(f"{place.name} is left out: {parts[part].name} is used")
        elif part is not None:
            parts[part] = place
    if set(parts) != {"train", "test"}:
        return _cut(read_sunrgbd(places[0], found=found), str, found)
    return {part: read_sunrgbd(place, found=found) for part, place in parts.items()}


def _kitti(folder: Path, home: Path, found: FileFindings) -> dict[str, Scenes]:
    """Lists of frames define the splits; they are in `ImageSets`, in the folder or above its `training`."""
    here = frames(home)
    if not here:
        raise InputError(f"{home / 'velodyne'} holds no scans (.bin)")
    places = [folder / "ImageSets", home / "ImageSets", home.parent / "ImageSets"]
    lists = {part: _named(places, f"{word}.txt") for part, word in (("train", "train"), ("test", "val"))}
    if any(names is None for names in lists.values()):
        return _cut(read_kitti(home, POINTS, found=found), str, found)
    splits: dict[str, Scenes] = {}
    for part, names in lists.items():
        there = sorted(set(names or ()) & set(here))
        if len(there) < len(names or ()):
            found.notes.append(f"of {len(names or ()):,} {part} frames {len(there):,} are here")
        if there:
            splits[part] = read_kitti(home, POINTS, there, found)
    return splits


def _scenes_in(folder: Path) -> list[Path]:
    """Files of one scene each."""
    return sorted([*folder.glob("*.npz"), *labelled_scans(folder)])


def _archives(folder: Path, found: FileFindings) -> dict[str, Scenes]:
    holding = [place for place in _below(folder) if _scenes_in(place)]
    parts: dict[str, Sequence[Path]] = {
        part: _scenes_in(place) for part, place in split_folders(holding, found).items()
    }
    if "test" not in parts and "validation" in parts:
        parts["test"] = parts.pop("validation")
    if {"train", "test"} <= set(parts):
        return read_archives(parts, found)
    files = _scenes_in(folder)
    if not files:
        raise InputError(f"{folder} holds no scenes; expected is {EXPECTED}")
    return _cut(read_archives({"whole": files}, found)["whole"], str, found)


def _cut(scenes: Scenes, room: Callable[[str], str], found: FileFindings) -> dict[str, Scenes]:
    """Every fifth room for testing, in the order of names, so that every source contributes its share."""
    rooms = list(dict.fromkeys(map(room, scenes.names)))
    if len(rooms) < 2:
        if len(scenes):
            found.faults.append(f"{scenes.names[0]} is all there is: nothing can be learned and tested on one room")
        return {}
    held = set(rooms[min(2, len(rooms) - 1) :: 5])
    aside = torch.tensor([room(name) in held for name in scenes.names])
    found.notes.append("the files have no split: every fifth room is held out for testing")
    return {
        "train": some_scenes(scenes, (~aside).nonzero().flatten()),
        "test": some_scenes(scenes, aside.nonzero().flatten()),
    }


def _holding(folder: Path, ending: str) -> list[Path]:
    """The folder and those directly below it that have files with this ending, in order of names."""
    return [place for place in (folder, *_below(folder)) if next(place.glob(f"*{ending}"), None) is not None]


def _below(folder: Path) -> list[Path]:
    return sorted(place for place in folder.iterdir() if place.is_dir() and not place.name.startswith("."))


datasets.register("scannet")(
    ScenesFromFiles(
        "ScanNet: 1,513 scanned rooms with axis-aligned boxes of 18 classes, as VoteNet prepares them.",
        places=("ScanNet", "scannet_train_detection_data"),
        get="ScanNet's authors give access to the scans on request, and VoteNet's repository (facebookresearch) "
        "prepares them: scannet_train_detection_data, with scannetv2_train.txt and scannetv2_val.txt",
    )
)
datasets.register("sunrgbd")(
    ScenesFromFiles(
        "SUN RGB-D: 10,335 depth pictures of rooms with oriented boxes of ten classes, as VoteNet prepares them.",
        places=("SUNRGBD", "sun-rgbd"),
        get="its authors publish SUNRGBD.zip and its toolbox, and VoteNet's repository (facebookresearch) prepares "
        "them: sunrgbd_pc_bbox_votes_50k_v1_train and ..._val",
    )
)
datasets.register("kitti")(
    ScenesFromFiles(
        "KITTI: 7,481 laser scans of streets with oriented boxes of eight classes of road users.",
        places=("KITTI", "kitti_object"),
        get="KITTI's authors publish velodyne, label_2 and calib of the object benchmark on cvlibs.net",
    )
)
datasets.register("scenes")(
    ScenesFromFiles(
        "Scenes of your own: a folder of scans with boxes (.json), or of .npz files with both.",
        get="write one file per scene with numpy.savez, or a .json of boxes beside each scan",
    )
)
