"""Models that leave Fedstill: ONNX and torch.export files, 8-bit weights, and how fast all of them are."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedstill.core.lazy import lazily

if TYPE_CHECKING:
    from fedstill.export.export_files import Exported, export_onnx, export_pt2
    from fedstill.export.export_run import Outcome, export
    from fedstill.models.portable.written_out import portable

__all__ = ["Exported", "Outcome", "export", "export_onnx", "export_pt2", "portable"]

__getattr__ = lazily(
    __name__,
    {
        "fedstill.export.export_files": ["Exported", "export_onnx", "export_pt2"],
        "fedstill.export.export_run": ["Outcome", "export"],
        "fedstill.models.portable.written_out": ["portable"],
    },
)
