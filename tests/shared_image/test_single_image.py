"""`fedstill run single-image` with an image of one's own, and what is refused of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from fedstill.core.errors import RunError
from fedstill.core.protocols import Client, Profile, RoundContext
from fedstill.core.task import Tensors
from fedstill.engines import Wire
from fedstill.runtime.assemble import make_experiment
from fedstill.runtime.plan import Simulation, make_plan
from fedstill.runtime.run import execute

Call = Callable[..., tuple[int, str, str]]

PIXELS = np.random.default_rng(0).integers(0, 256, (40, 50, 3), dtype=np.uint8)
SMALL = ("epochs=1", "training.batch=64", "samples=20", "steps=2", "method.batch=16", "method.patches.count=40")
SETTINGS = [word for setting in (*SMALL, "method.selection.kmeans=4") for word in ("--set", setting)]
IMAGES = ["run", "single-image", "--data", "digits", "--model", "mlp", "--clients", "2", "--rounds", "1", *SETTINGS]


def answer(call: Call, *words: str) -> dict[str, Any]:
    code, out, err = call(*words, "--json")
    assert code == 0, err
    return dict(json.loads(out))


# Images of every mode


def palette() -> tuple[Image.Image, Image.Image]:
    """Eight colours, of which the first is transparent: it shows the paper below."""
    few = Image.fromarray(PIXELS).quantize(8)
    numbers, colours = np.asarray(few), np.asarray(few.convert("RGB")).copy()
    assert (numbers == 0).any()
    colours[numbers == 0] = 255
    few.info["transparency"] = 0
    return few, Image.fromarray(colours)


def deep() -> tuple[Image.Image, Image.Image]:
    """Sixteen bits of grey: 257 times the eight bits."""
    return Image.fromarray(PIXELS[:, :, 0].astype(np.uint16) * 257), Image.fromarray(PIXELS[:, :, 0])


def inks() -> tuple[Image.Image, Image.Image]:
    """Four inks without black, in a file that loses nothing: colours are what they leave of white."""
    ink = np.dstack([255 - PIXELS, np.zeros(PIXELS.shape[:2], np.uint8)])
    return Image.fromarray(ink, "CMYK"), Image.fromarray(PIXELS)


@pytest.mark.parametrize("make", [palette, deep, inks], ids=["palette", "sixteen-bits", "inks"])
def test_odd_modes_give_the_run_of_the_plain_image(
    call: Call, make: Callable[[], tuple[Image.Image, Image.Image]]
) -> None:
    odd, plain = make()
    odd.save("odd.tiff" if odd.mode == "CMYK" else "odd.png")
    plain.save("plain.png")
    Image.fromarray(np.ascontiguousarray(PIXELS[::-1])).save("other.png")
    name = next(path.name for path in Path().glob("odd.*"))
    runs = [answer(call, *IMAGES, "--set", f"image=image:{file}") for file in (name, "plain.png", "other.png")]
    assert runs[0]["sha256"] == runs[1]["sha256"] != runs[2]["sha256"]


# Mistakes


@pytest.fixture
def files(tmp_path: Path) -> None:
    picture = Image.fromarray(PIXELS)
    picture.save(tmp_path / "good.png")
    Image.fromarray(PIXELS[:12, :20]).save(tmp_path / "small.png")
    whole = (tmp_path / "good.png").read_bytes()
    (tmp_path / "cut.png").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "prose.png").write_text("not a picture")
    (tmp_path / "empty.png").write_bytes(b"")
    picture.save(tmp_path / "moving.gif", save_all=True, append_images=[Image.fromarray(255 - PIXELS)])


MIXED = ["--set", 'models={"mlp":1,"cnn":1}']
MISTAKES: dict[str, tuple[list[str], str]] = {
    "too small": ([*IMAGES, "--set", "image=image:small.png"], "20 x 12 pixels is too small for patches of 8 x 8"),
    "cut": ([*IMAGES, "--set", "image=image:cut.png"], "cut.png is a damaged image"),
    "prose": ([*IMAGES, "--set", "image=image:prose.png"], "prose.png is no image that Pillow can read"),
    "empty": ([*IMAGES, "--set", "image=image:empty.png"], "empty.png is empty"),
    "moving": ([*IMAGES, "--set", "image=image:moving.gif"], "moving.gif holds 2 pictures: give a still image"),
    "missing": ([*IMAGES, "--set", "image=image:none.png"], "there is no file none.png"),
    "a folder": ([*IMAGES, "--set", "image=image:."], "there is no file ."),
    "no prefix": ([*IMAGES, "--set", "image=good.png"], "unknown image 'good.png'"),
    "a cloud": ([*IMAGES, "--set", "image=heads:0"], "heads:0 cannot be cut into patches for images"),
    "samples": ([*IMAGES, "--set", "samples=41"], "41 samples cannot be selected from a pool of 40"),
    "clusters": ([*IMAGES, "--set", "method.selection.kmeans=41"], "cannot be put into 41 clusters"),
    "features": ([*IMAGES, "--set", "method.objective=feature"], "clients send logits, and the objective feature"),
    "labels": ([*IMAGES, "--set", "method.objective=crd"], "not assessable without labels"),
    "objective": ([*IMAGES, "--set", "method.objective=vanila"], "did you mean 'vanilla'"),
    "fedavg": (["run", "fedavg", "--clients", "2", *MIXED], "fedavg averages weights, and clients with mlp and cnn"),
    "scaffold": (["run", "scaffold", "--clients", "2", *MIXED], "scaffold averages weights"),
}


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_gets_one_sentence_and_writes_nothing(call: Call, name: str) -> None:
    words, sentence = MISTAKES[name]
    before = sorted(Path().iterdir())
    code, out, err = call(*words)
    assert (code, out) == (2, "")
    assert sentence in err
    assert len(err.splitlines()) == 1
    assert sorted(Path().iterdir()) == before


# Another image than the server's


class Elsewhere:
    """Clients of whom some cut their patches from an image of their own."""

    def __init__(self, plan: Simulation, other: Simulation, astray: set[int]) -> None:
        self.plan, self.other, self.astray = plan, other, astray

    def __call__(self, profile: Profile, state: Tensors, context: RoundContext) -> Client:
        return (self.other if profile.id in self.astray else self.plan).clients(profile, state, context)


class Astray(Wire):
    """The wire, with such clients at its other end."""

    def __init__(self, clients: Elsewhere) -> None:
        super().__init__()
        self.astray = clients

    def open(self, factory: Any) -> None:
        super().open(self.astray)


def planned(image: str) -> Simulation:
    method = {
        "name": "single-image",
        "image": image,
        "patches": {"count": 40},
        "samples": 20,
        "steps": 2,
        "selection": {"kmeans": 4},
    }
    tiny = {"data": "digits", "model": "mlp", "clients": 3, "rounds": 1, "training": {"epochs": 1, "batch": 64}}
    return make_plan(make_experiment({**tiny, "method": method}))


def test_a_client_with_another_image_is_refused_by_its_hash(tmp_path: Path) -> None:
    """One of three is left out of the round and the journal says why; if all are astray, there is no run."""
    one, other = PIXELS.copy(), PIXELS.copy()
    other[7, 7, 1] ^= 1
    for name, pixels in (("one", one), ("other", other)):
        Image.fromarray(pixels).save(tmp_path / f"{name}.png")
    ours, theirs = (planned(f"image:{tmp_path / name}.png") for name in ("one", "other"))
    folder = execute(ours, Astray(Elsewhere(ours, theirs, {1})), tmp_path / "some")
    (record,) = folder.journal()
    assert record.accepted == (0, 2)
    (lost,) = record.failures
    assert (lost.client, lost.reason) == (1, "failed")
    assert "the proxy data here is not the server's: give both the same image" in lost.detail
    with pytest.raises(RunError, match=r"every client failed; .* not the server's: give both the same image"):
        execute(ours, Astray(Elsewhere(ours, theirs, {0, 1, 2})), tmp_path / "none")
