"""Data sets, their readers, and the partitions of a data set into client shards. Further packages add more.

Each module is imported when one of its data sets is first looked up.
"""

from fedstill.core.dataset import ArrayDataset
from fedstill.data.bundle import Bundle, Source, datasets

__all__ = ["ArrayDataset", "Bundle", "Source", "datasets"]

for _file, _names in {
    "digits": ("digits",),
    "head_parts": ("head-parts",),
    "heads": ("heads",),
    "known_clouds": (
        *("craniosynostosis-patients", "craniosynostosis-ssm", "gazebo", "modelnet10", "modelnet40", "omniobject3d"),
        *("scanned-objects", "scanobjectnn", "shapenet-part", "ycb"),
    ),
    "known_images": (
        *("blood", "bloodmnist", "breastmnist", "cifar10", "cifar100", "cinic10", "craniosynostosis-maps"),
        *("dermamnist", "fashion-mnist", "mnist", "octmnist", "organamnist", "organcmnist", "organsmnist"),
        *("pathmnist", "pneumoniamnist", "retinamnist", "tissuemnist"),
    ),
    "known_tables": ("heart-disease",),
}.items():
    datasets.declare(f"fedstill.data.{_file}", *_names)
