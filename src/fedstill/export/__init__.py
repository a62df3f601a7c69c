"""Models that leave Fedstill: ONNX and torch.export files, 8-bit weights, and how fast all of them are."""

from __future__ import annotations

from fedstill.core.rooms import make_callable
from fedstill.export.command import Outcome, export
from fedstill.export.files import Exported, export_onnx, export_pt2
from fedstill.models.portable.written_out import portable

__all__ = ["Exported", "Outcome", "export", "export_onnx", "export_pt2", "portable"]

make_callable(__name__, export)
