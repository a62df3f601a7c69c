"""Models by name; importing this package registers all of them."""

from fedstill.models import (
    cnn,
    detector,
    dgcnn,
    mlp,
    pointnet,
    pointnet2,
    pointnet2_segmentation,
    resnet,
    split_cnn,
    wide_resnet,
)
from fedstill.models.classifier import Classifier
from fedstill.models.registry import ModelBuilder, build_model, models
from fedstill.models.surgery import duplicate, freeze

__all__ = [
    "Classifier",
    "ModelBuilder",
    "build_model",
    "cnn",
    "detector",
    "dgcnn",
    "duplicate",
    "freeze",
    "mlp",
    "models",
    "pointnet",
    "pointnet2",
    "pointnet2_segmentation",
    "resnet",
    "split_cnn",
    "wide_resnet",
]
