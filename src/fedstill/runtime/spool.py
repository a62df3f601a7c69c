"""Large replies spilled to disk: their tensors are in files and are read as needed."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from tempfile import mkdtemp

import torch
from torch import Tensor

from fedstill.core.message import Message
from fedstill.core.protocols import Reply

LARGE = 2**16  # bytes; smaller tensors stay where they are


class Spool:
    """A folder for the large tensors of one exchange's replies; a system's temporary one where none is given.

    Whatever a killed process left in it is of no use to anybody, and is deleted when the run goes on.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self.folder, self._made = folder, folder
        self._files = 0

    def keep(self, reply: Reply) -> Reply:
        """The same reply, its large tensors mapped from files."""
        return replace(reply, message=Message({name: self._kept(tensor) for name, tensor in reply.message.items()}))

    def clear(self) -> None:
        """Forget all of them."""
        if self._made is not None and self._made.exists():
            shutil.rmtree(self._made, ignore_errors=True)
        self._made, self._files = self.folder, 0

    def _kept(self, tensor: Tensor) -> Tensor:
        if tensor.nbytes < LARGE:
            return tensor
        if self._made is None:
            self._made = Path(mkdtemp(prefix="fedstill-"))
        self._made.mkdir(exist_ok=True)
        path = self._made / str(self._files)
        self._files += 1
        path.write_bytes(tensor.flatten().view(torch.uint8).numpy().data)
        return torch.from_file(str(path), shared=False, size=tensor.numel(), dtype=tensor.dtype).view(tensor.shape)
