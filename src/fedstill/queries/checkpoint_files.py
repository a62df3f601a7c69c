"""Models that others trained, as files of weights in a folder: each is checked before anything is computed with it.

FOLDER/clinic-a.safetensors    weights, under torch's names or Fedstill's; the name of the file names the peer
FOLDER/clinic-b.safetensors
FOLDER/peers.yaml              optional: the model of a file, and the recall that its owner reports

clinic-a: cnn                  (in peers.yaml; files that are not listed have the model of the query)
clinic-b: {model: mynets:build, recall: {7: 0.93}}
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import torch
from pydantic import Field, ValidationError, field_validator
from torch import nn

from fedstill.core.errors import InputError, did_you_mean
from fedstill.core.files import read_file, read_text_file
from fedstill.core.kinds import BUFFERS, COUNTERS, PARAMETERS, load_state, state_of
from fedstill.core.message import Message, MessageError, part
from fedstill.core.settings import Settings
from fedstill.core.task import Tensors
from fedstill.core.yaml_text import parse_yaml
from fedstill.models.classifier import Classifier
from fedstill.models.own_models import fill
from fedstill.runtime.experiment import sentence

FACTS_FILE = "peers.yaml"
SUFFIX = ".safetensors"
_PICKLES = frozenset({".pt", ".pth", ".bin", ".ckpt", ".pkl", ".pickle"})
_KINDS = {one.rstrip("/") for one in (PARAMETERS, BUFFERS, COUNTERS)}


class PeerFacts(Settings):
    """What is known of a peer's file beside its weights."""

    model: str | None = Field(None, description="name of its model, or module:function")
    recall: dict[str, Annotated[float, Field(ge=0, le=1)]] = Field(
        default_factory=dict, description="recall of classes on the peer's held-out data, as it reports them"
    )

    @field_validator("recall", mode="before")
    @classmethod
    def _texts(cls, value: Any) -> Any:
        """YAML reads the number of a class as a number."""
        return {str(key): one for key, one in value.items()} if isinstance(value, Mapping) else value


def peer_files(folder: Path, own: Path | None = None) -> list[Path]:
    """The files of weights in a folder, by name, without the asker's `own`."""
    if not folder.is_dir():
        raise InputError(f"{folder} is not a folder of checkpoints: name one with a {SUFFIX} file for each peer")
    inside = sorted(path for path in folder.iterdir() if path.is_file() and not path.name.startswith("."))
    for path in inside:
        refuse_pickle(path)
    files = [path for path in inside if path.suffix == SUFFIX and not (own and own.exists() and path.samefile(own))]
    if not files:
        raise InputError(f"{folder} holds no checkpoint of a peer: put one {SUFFIX} file for each peer into it")
    return files


def refuse_pickle(path: Path) -> None:
    """Refuse a file that may run code when it is read."""
    if path.suffix.lower() in _PICKLES:
        raise InputError(
            f"{path} may be a pickle, which can run code when it is read: have its owner convert it with"
            f" `safetensors.torch.save_file(torch.load({path.name!r}, weights_only=True),"
            f" {path.with_suffix(SUFFIX).name!r})`"
        )


def peer_facts(folder: Path, files: Sequence[Path]) -> dict[str, PeerFacts]:
    """What peers.yaml says, by peer; a name in it without a file is an error."""
    path = folder / FACTS_FILE
    try:
        given = parse_yaml(read_text_file(path)) if path.exists() else {}
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read: {' '.join(str(error).split())[:200]}") from None
    if not isinstance(given, dict):
        raise InputError(f"{path} must have one line for each file, as in `clinic-a: cnn`")
    peers = [file.stem for file in files]
    found = {}
    for key, value in given.items():
        name = str(key).removesuffix(SUFFIX)
        if name not in peers:
            raise InputError(f"{path} describes {name!r}, and there is no {name}{SUFFIX}: {did_you_mean(name, peers)}")
        try:
            found[name] = PeerFacts.model_validate({"model": value} if isinstance(value, str) else value)
        except ValidationError as error:
            raise InputError(f"{path}, {name}: {sentence(error, PeerFacts.model_fields)}") from None
    return found


def read_weights(path: Path) -> Tensors:
    """The tensors of a file, all finite; a run's model loses the name of its architecture."""
    refuse_pickle(path)
    try:
        tensors: Tensors = dict(Message.decode(read_file(path)))
    except FileNotFoundError:
        raise InputError(f"there is no file {path}") from None
    except (OSError, MessageError) as error:
        why = " ".join(str(error).split())[:200]
        raise InputError(f"{path} cannot be read as {SUFFIX}: {why}") from None
    owners = {name.split("/", 1)[0] for name in tensors}
    if len(owners) == 1 and not owners & _KINDS and all("/" in name for name in tensors):
        tensors = part(tensors, f"{owners.pop()}/")
    if not tensors:
        raise InputError(f"{path} holds no weights")
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            raise InputError(f"the weights in {path} are not finite: {name!r} holds NaN or infinity")
    return tensors


def fit_weights(model: nn.Module, tensors: Tensors, path: Path, architecture: str) -> None:
    """Load a file's tensors into a model that they fit exactly; any other model is refused."""
    kinds = state_of(model)
    plain = {name.split("/", 1)[1]: name for name in kinds}
    misfit = f"the weights in {path} do not fit the model {architecture}"
    if not all(name.split("/", 1)[0] in _KINDS for name in tensors):  # as torch names them
        tensors = {plain.get(name, name): tensor for name, tensor in tensors.items()}
    elif not isinstance(model, Classifier) and all(_split_name(name) for name in tensors):
        try:
            fill(model, tensors)
        except RuntimeError as error:
            raise InputError(f"{misfit}: {' '.join(str(error).split())[:200]}") from None
        return
    strange, lacking = sorted(tensors.keys() - kinds.keys()), sorted(kinds.keys() - tensors.keys())
    if strange or lacking:
        what = f"it has no tensor {strange[0]!r}" if strange else f"the file lacks {lacking[0]!r}"
        raise InputError(f"{misfit}: {what}")
    for name, tensor in kinds.items():
        if tensor.shape != tensors[name].shape:
            theirs, ours = ("x".join(map(str, one.shape)) or "one number" for one in (tensors[name], tensor))
            raise InputError(
                f"{misfit}: {name!r} is {theirs} there and {ours} here, so it is another model, or has another number"
                " of classes"
            )
    load_state(model, tensors)


def _split_name(name: str) -> bool:
    """Whether a tensor is one of a user's own model that was stored as extractor and head."""
    kind, _, rest = name.partition("/")
    return kind in _KINDS and rest.startswith(("extractor.", "head."))
