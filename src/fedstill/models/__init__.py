"""Models by name: classifiers for images and point clouds. Further packages add more."""

from fedstill.models.builders import ModelBuilder, build_model, models
from fedstill.models.classifier import Classifier
from fedstill.models.surgery import duplicate, freeze

__all__ = ["Classifier", "ModelBuilder", "build_model", "duplicate", "freeze", "models"]

for _file, _names in {
    "cnn": ("cnn", "cnn-bn"),
    "cnn1d": ("cnn1d",),
    "dgcnn": ("dgcnn",),
    "imagenet_resnet": ("resnet18-imagenet", "resnet50-imagenet"),
    "mlp": ("mlp",),
    "mobilenet": ("mobilenetv3-small",),
    "pointnet": ("pointnet", "pointnet-tiny", "small-pointnet-tiny"),
    "pointnet2": ("pointnet2", "pointnet2-lite", "small-pointnet2", "small-pointnet2-lite"),
    "pointnet2_msg": ("pointnet2-msg",),
    "pointnet2_segmentation": ("pointnet2-segmentation", "pointnet2-segmentation-lite"),
    "pointnext": ("pointnext-s",),
    "resnet": ("resnet18", "resnet20", "resnet50", "resnet8"),
    "vision_transformer": ("vit-tiny",),
    "wide_resnet": ("wrn16-1", "wrn16-4"),
}.items():
    models.declare(f"fedstill.models.{_file}", *_names)
