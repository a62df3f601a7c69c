"""The shape data sets known by name. All of them can also be given as .npz files."""

from __future__ import annotations

import torch

from fedstill.data.bundle import Source, datasets
from fedstill.data.file_sources import FromFiles
from fedstill.data.findings import find_faults
from fedstill.data.layout import Samples
from fedstill.data.readers import shapenet_part
from fedstill.data.readers.raw import FileFindings

_HEADS = ("control", "coronal", "metopic", "sagittal")
_SCANNED = (
    *("bag", "bin", "box", "cabinet", "chair", "desk", "display", "door"),
    *("shelf", "table", "bed", "pillow", "sink", "sofa", "toilet"),
)
_YCB_GROUPS = ((18, "food"), (34, "kitchen"), (52, "tool"), (65, "shape"), (99, "task"))


def head_class(folder: str) -> str | None:
    """The class in the name of a folder of heads, ignoring the rest of the name.

    >>> head_class("Sagittal_suture_fusion"), head_class("mean_shapes")
    ('sagittal', None)
    """
    named = [name for name in _HEADS if name in folder.lower()]
    return named[0] if len(named) == 1 else None


def ycb_group(thing: str) -> str | None:
    """The group an object belongs to by its number, as the authors of YCB number them.

    >>> ycb_group("025_mug"), ycb_group("065-a_cups"), ycb_group("notes")
    ('kitchen', 'shape', None)
    """
    number = int(thing[:3]) if thing[:3].isascii() and thing[:3].isdigit() else 0
    return next((group for last, group in _YCB_GROUPS if 0 < number <= last), None)


class PartsFromFiles(FromFiles):
    """A loader for files in ShapeNet-part's layout: a bundle whose labels are per point."""

    def open(self, source: Source, found: FileFindings) -> tuple[dict[str, Samples], tuple[str, ...]]:
        splits: dict[str, shapenet_part.Parts] = {}
        classes: tuple[str, ...] = ()
        kinds: tuple[str, ...] = ()
        with found.collecting():
            splits, classes, kinds = shapenet_part.read(self.locate(source), found)
        samples = {name: _samples(part, name, kinds) for name, part in splits.items()}
        find_faults(samples, classes, found)
        return samples, classes


def _samples(part: shapenet_part.Parts, where: str, kinds: tuple[str, ...]) -> Samples:
    clouds, labels, category = (torch.from_numpy(array) for array in part[:3])
    return Samples(clouds, labels, "cloud", where, part.names, category, kinds)


datasets.register("modelnet40")(
    FromFiles(
        "ModelNet40: 12,311 shapes of 40 kinds of things.",
        places=("modelnet40_normal_resampled", "modelnet40_ply_hdf5_2048", "ModelNet40"),
        get="Princeton publishes the meshes (ModelNet40.zip), and Stanford the text files "
        "(modelnet40_normal_resampled.zip) and .h5 files (modelnet40_ply_hdf5_2048.zip) made of them",
    )
)
datasets.register("modelnet10")(
    FromFiles(
        "ModelNet10: 4,899 shapes of ten kinds of furniture.",
        places=("ModelNet10", "modelnet40_normal_resampled"),
        get="Princeton publishes the meshes (ModelNet10.zip), and modelnet40_normal_resampled has them too",
    )
)
datasets.register("craniosynostosis-ssm")(
    FromFiles(
        "Heads of infants drawn from a statistical shape model: control, coronal, metopic, sagittal.",
        places=(
            *("craniosynostosis/cranio_ssm_points2048.npz", "cranio_ssm_points2048.npz"),
            "craniosynostosis/ssm",
        ),
        classes=_HEADS,
        get="Schaufelberger et al. (KIT) publish instances of their model on Zenodo: "
        "give a folder with a folder of .ply or .obj files per class",
        group=head_class,
    )
)
datasets.register("craniosynostosis-patients")(
    FromFiles(
        "Heads of real infants, as clouds: control, coronal, metopic, sagittal.",
        places=(
            *("craniosynostosis/cranio_patients_points1024.npz", "cranio_patients_points1024.npz"),
            "craniosynostosis/patients",
        ),
        classes=_HEADS,
        get="KIT publishes patients as distance maps, from which clouds can be made: "
        "give an archive, or a folder with a folder of .ply or .obj files per class",
        group=head_class,
    )
)
datasets.register("omniobject3d")(
    FromFiles(
        "OmniObject3D: 6,000 scanned things of 190 kinds.",
        places=("OmniObject3D", "omniobject3d/raw_scans"),
        get="its authors publish scans (OpenXLab), with a folder of objects per kind",
    )
)
datasets.register("ycb")(
    FromFiles(
        "YCB: 78 household objects of five groups, one scan each.",
        places=("YCB", "ycb_models"),
        get="its authors publish a folder of meshes per object (google_16k is the one to take)",
        group=ycb_group,
        object_folders=True,
        prefer="google_16k",
    )
)
for _name, _other in (("scanned-objects", "gazebo"), ("gazebo", "scanned-objects")):
    datasets.register(_name)(
        FromFiles(
            "Google Scanned Objects, as Gazebo has them: 1,030 household things.",
            places=("scanned_objects", "google_scanned_objects", _other),
            get="Gazebo Fuel (GoogleResearch) publishes a folder per object; a table metadata.csv "
            "with the columns name and class must say what they are",
        )
    )
datasets.register("scanobjectnn")(
    FromFiles(
        "ScanObjectNN: about 2,900 scanned things of 15 kinds, with their background.",
        places=("ScanObjectNN", "h5_files"),
        classes=_SCANNED,
        get="its authors publish training_objectdataset.h5 and test_objectdataset.h5 on request (h5_files.zip); "
        "give the path of another training file to use that variant",
    )
)
datasets.register("shapenet-part")(
    PartsFromFiles(
        "ShapeNet-part: 16,881 shapes of 16 kinds, every point labelled as one of 50 parts.",
        places=("shapenetcore_partanno_segmentation_benchmark_v0_normal",),
        get="Stanford publishes shapenetcore_partanno_segmentation_benchmark_v0_normal.zip: "
        "synsetoffset2category.txt, train_test_split and a folder of text files per kind",
    )
)
