"""Models that leave Fedstill: ONNX and torch.export files, 8-bit weights, and how fast all of them are."""

from fedstill.export.files import Exported, export_onnx, export_pt2
from fedstill.models.portable.written_out import portable

__all__ = ["Exported", "export_onnx", "export_pt2", "portable"]
