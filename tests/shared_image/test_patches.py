"""Patches of an image against the pipeline written out pixel by pixel, and the promise that an index is enough."""

from __future__ import annotations

import colorsys
import math
import pickle
from functools import cache
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from fedstill.core.errors import InputError
from fedstill.core.streams import Streams
from fedstill.shared_image import patch_numbers
from fedstill.shared_image.patch_geometry import outlines, place, pyramid, resized
from fedstill.shared_image.patch_pool import PatchPool
from fedstill.shared_image.patches import Patches, PatchSettings, make_patches, patch_source

from ..warm import Warm

# Of the first 64 patches of 16 x 16 of noise:96x80, seed 0; noise needs no decoder, so this should hold everywhere.
PINNED = "ea3bfd0450bd2f8552bf680193d187c434fe3d07b777ca54e4dc3313776f0cac"
PRINT_DIGEST = """
import sys, torch
from hashlib import sha256
from fedstill.shared_image.patches import make_patches
pool = make_patches("noise:96x80", (3, 16, 16), "image")
print(sha256(pool.pixels(torch.arange(64)).numpy().tobytes()).hexdigest())
"""


def photo(height: int = 90, width: int = 120) -> np.ndarray:
    """Smooth colours with some noise: neighbours differ, so that a wrong place shows."""
    y, x = np.mgrid[:height, :width]
    waves = [127 + 90 * np.sin(x / 9 + k) * np.cos(y / 7 - k) for k in range(3)]
    noise = np.random.default_rng(1).normal(0, 12, (height, width, 3))
    return np.clip(np.stack(waves, axis=2) + noise, 0, 255).astype(np.uint8)


def slow_placement(chosen: PatchSettings, height: int, width: int, number: int) -> dict[str, float]:
    """The place of one patch from the plain sequence of its stream, with the library's functions."""
    u = Streams(chosen.seed).draw("patches").random((number + 1, 32))[number]
    side = min(height, width) // 2
    row, column = int(u[0] * (height - side + 1)), int(u[1] * (width - side + 1))
    wide = tall = side
    for attempt in range(10):
        area = side * side * (chosen.area[0] + u[2 + attempt] * (chosen.area[1] - chosen.area[0]))
        low, high = map(math.log, chosen.ratio)
        ratio = math.exp(low + u[12 + attempt] * (high - low))
        tried = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < tried[0] <= side and 0 < tried[1] <= side:
            wide, tall = tried
            break
    return {
        "left": column + int(u[23] * (side - wide + 1)),
        "top": row + int(u[22] * (side - tall + 1)),
        "width": wide,
        "height": tall,
        "angle": math.radians((2 * u[24] - 1) * chosen.rotation),
        "slope": math.tan(math.radians((2 * u[25] - 1) * chosen.shear)),
        "mirror": -1 if u[26] < chosen.flip else 1,
        "coloured": u[27] < chosen.jitter_probability,
        "brightness": 1 + (2 * u[28] - 1) * chosen.jitter[0],
        "contrast": 1 + (2 * u[29] - 1) * chosen.jitter[1],
        "saturation": 1 + (2 * u[30] - 1) * chosen.jitter[2],
        "hue": (2 * u[31] - 1) * chosen.jitter[3],
    }


def slow_patch(image: np.ndarray, at: dict[str, float], height: int, width: int) -> np.ndarray:
    """One patch, backwards through the steps for every pixel: mirror, middle, turn and shear, resize, crop."""
    wide, tall = math.ceil(math.sqrt(2) * width), math.ceil(math.sqrt(2) * height)
    shrink = math.sqrt(at["width"] * at["height"] / (wide * tall))
    level = max(0, round(math.log2(shrink)))
    block = 2**level
    rows, columns = image.shape[0] // block, image.shape[1] // block
    cut = image[: rows * block, : columns * block].astype(float).reshape(rows, block, columns, block, 3)
    small = np.floor(cut.mean(axis=(1, 3)) + 0.5)
    patch = np.zeros((height, width, 3))
    cosine, sine = math.cos(at["angle"]), math.sin(at["angle"])
    for r in range(height):
        for c in range(width):
            u, v = at["mirror"] * (c + 0.5 - width / 2), r + 0.5 - height / 2
            u, v = cosine * u + sine * v, cosine * v - sine * u
            u += at["slope"] * v
            if abs(u) > wide / 2 or abs(v) > tall / 2:
                continue
            x = (at["left"] + (u / wide + 0.5) * at["width"]) / block - 0.5
            y = (at["top"] + (v / tall + 0.5) * at["height"]) / block - 0.5
            x, y = min(max(x, 0), columns - 1), min(max(y, 0), rows - 1)
            for i, a in ((math.floor(y), 1 - y % 1), (math.ceil(y), y % 1)):
                for j, b in ((math.floor(x), 1 - x % 1), (math.ceil(x), x % 1)):
                    patch[r, c] += a * b * small[i, j]
    return slow_colours(patch, at) if at["coloured"] else patch


def slow_colours(patch: np.ndarray, at: dict[str, float]) -> np.ndarray:
    luma = np.array([0.299, 0.587, 0.114])
    patch = np.clip(patch * at["brightness"], 0, 255)
    mean = (patch @ luma).mean()
    patch = np.clip(mean + (patch - mean) * at["contrast"], 0, 255)
    grey = (patch @ luma)[..., None]
    patch = np.clip(grey + (patch - grey) * at["saturation"], 0, 255)
    for pixel in patch.reshape(-1, 3):
        hue, saturation, value = colorsys.rgb_to_hsv(*pixel / 255)
        pixel[:] = np.array(colorsys.hsv_to_rgb((hue + at["hue"]) % 1, saturation, value)) * 255
    return patch


@pytest.mark.parametrize("shape", [(3, 12, 12), (3, 9, 14), (1, 7, 7)], ids=["square", "oblong", "grey"])
def test_patches_are_those_of_the_pipeline_pixel_by_pixel(shape: tuple[int, int, int]) -> None:
    image, chosen = photo(), PatchSettings(count=40, seed=3)
    pool = Patches(image, shape, chosen)
    made = pool.pixels(torch.arange(40)).numpy().astype(float)
    levels, coloured = set(), set()
    for number in range(0, 40, 3):
        at = slow_placement(chosen, *image.shape[:2], number)
        slow = slow_patch(image, at, *shape[1:])
        slow = slow @ [[0.299], [0.587], [0.114]] if shape[0] == 1 else slow
        assert np.abs(slow.transpose(2, 0, 1) - made[number]).max() <= 0.51, number
        levels.add(round(math.log2(max(1, at["width"] / resized(shape[2])))))
        coloured.add(bool(at["coloured"]))
    assert coloured == {True, False}
    assert len(levels) > 1, "small and large crops must both have been looked at"


def test_placement_is_that_of_the_draws() -> None:
    chosen = PatchSettings(count=50, seed=11, area=(0.6, 1.0), ratio=(0.3, 3.0))  # most tries do not fit
    placed = place(chosen, 301, 222, np.arange(2000, 2050))
    whole = 0
    for number in range(50):
        at = slow_placement(chosen, 301, 222, 2000 + number)
        for name in ("left", "top", "width", "height", "angle", "slope", "mirror", "coloured"):
            assert getattr(placed, name)[number] == pytest.approx(at[name], abs=1e-12), name
        colours = [at[name] for name in ("brightness", "contrast", "saturation", "hue")]
        assert placed.colours[number].tolist() == pytest.approx(colours, abs=1e-12)
        whole += at["width"] != at["height"]
    assert whole > 25


def fresh() -> Patches:
    return Patches(photo(), (3, 8, 8), PatchSettings(count=3000, seed=5))


POOL = fresh()


@cache
def every() -> torch.Tensor:
    return fresh().pixels(torch.arange(3000))


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(0, 2999), max_size=40))
def test_a_patch_does_not_depend_on_the_others(rows: list[int]) -> None:
    wanted = torch.tensor(rows, dtype=torch.int64)
    assert torch.equal(fresh().pixels(wanted), every()[wanted])
    assert torch.equal(POOL.pixels(wanted), every()[wanted]), "also where some had been made before"


def test_the_pool_may_be_longer_without_changing_its_beginning() -> None:
    long = Patches(photo(), (3, 8, 8), PatchSettings(count=5_000_000, seed=5))  # too large to be kept
    rows = torch.tensor([2999, 0, 1024])
    assert torch.equal(long.pixels(rows), every()[rows])
    assert not torch.equal(long.pixels(torch.tensor([4_999_999])), every()[:1])
    assert len(long.pixels(rows[:0])) == 0


def test_another_process_makes_the_same_bytes_and_so_does_every_machine(foreign: Warm, tmp_path: Path) -> None:
    pool = make_patches("noise:96x80", (3, 16, 16), "image")
    here = sha256(pool.pixels(torch.arange(64)).numpy().tobytes()).hexdigest()
    done = foreign.python(PRINT_DIGEST, tmp_path)
    assert done.stdout.strip() == here, done.stderr
    assert here == PINNED


def test_draws_have_the_distributions_asked_for() -> None:
    """10,000 draws: a share of a half is off by 0.025 once in two million times."""
    placed = place(PatchSettings(), 480, 640, np.arange(10_000))
    side = 240
    assert np.degrees(np.abs(placed.angle)).max() == pytest.approx(30, abs=0.1)
    assert np.degrees(placed.angle).mean() == pytest.approx(0, abs=0.9)
    assert np.degrees(np.arctan(np.abs(placed.slope))).max() == pytest.approx(30, abs=0.1)
    assert (placed.mirror < 0).mean() == pytest.approx(0.5, abs=0.025)
    assert placed.coloured.mean() == pytest.approx(0.5, abs=0.025)
    assert (placed.colours[:, :3].min(), placed.colours[:, :3].max()) == pytest.approx((0.6, 1.4), abs=1e-3)
    assert (placed.colours[:, 3].min(), placed.colours[:, 3].max()) == pytest.approx((-0.1, 0.1), abs=1e-3)
    share = placed.width * placed.height / side**2
    assert share.min() < 0.01
    assert share.max() > 0.98
    inside = (placed.left >= 0) & (placed.left + placed.width <= 640) & (placed.top + placed.height <= 480)
    assert inside.all()
    tall = placed.width / placed.height
    assert ((tall > 0.7) & (tall < 1.45)).all()


def test_nothing_random_leaves_the_middle_of_a_crop() -> None:
    """Without turn, shear, mirror and colours a patch is the middle of its crop, resized; here four pixels to one."""
    chosen = PatchSettings(count=4, area=(1, 1), ratio=(1, 1), rotation=0, shear=0, flip=0, jitter_probability=0)
    image = photo(184, 200)  # a crop of 92 = 2 * 46 pixels
    pool = Patches(image, (3, 32, 32), chosen)
    placed = pool.place(torch.arange(4))
    for number, patch in enumerate(pool.pixels(torch.arange(4)).numpy()):
        top, left = int(placed.top[number]) + 14, int(placed.left[number]) + 14
        box = image[top : top + 64, left : left + 64].astype(float).reshape(32, 2, 32, 2, 3).mean(axis=(1, 3))
        off = np.abs(box.transpose(2, 0, 1) - patch)
        even = top % 2 == 0 and left % 2 == 0
        assert off.max() <= (0.51 if even else 40)
        assert off.mean() < 8
    mirrored = Patches(image, (3, 32, 32), chosen.model_copy(update={"flip": 1.0}))
    assert torch.equal(mirrored.pixels(torch.arange(4)).flip(3), pool.pixels(torch.arange(4)))


def test_outlines_are_where_the_patch_looks() -> None:
    """A patch of the middle, unturned: its corners are the crop's, 32/46 of it about its middle."""
    chosen = PatchSettings(count=3, rotation=0, shear=0, flip=0)
    placed = place(chosen, 400, 400, np.arange(3))
    corners = outlines(placed, 32, 32)
    half = placed.width / 2 * 32 / 46
    assert corners[:, 0, 0] == pytest.approx(placed.left + placed.width / 2 - half)
    assert corners[:, 2, 0] == pytest.approx(placed.left + placed.width / 2 + half)
    assert (corners[:, 2, 1] > corners[:, 0, 1]).all()


def test_levels_are_means_and_odd_edges_are_left_out() -> None:
    image = photo(13, 22)
    made = pyramid(image, 3.0)
    assert made.heights.tolist() == [13, 6, 3]
    assert made.widths.tolist() == [22, 11, 5]
    second = made.pixels[made.starts[2] :][: 3 * 5 * 3].reshape(3, 5, 3)
    mean = image[:12, :20].reshape(3, 4, 5, 4, 3).mean(axis=(1, 3))
    assert np.abs(second - mean).max() <= 0.5
    scale = np.array([[0.3, 0.3], [1.4, 1.4], [1.42, 1.42], [2.0, 4.0], [30.0, 30.0]])
    assert made.level(scale).tolist() == [0, 0, 1, 2, 2]


def test_it_is_a_data_set_without_labels() -> None:
    rows = torch.tensor([7, 0, 7])
    batch = POOL.batch(rows)
    assert set(batch) == {"inputs", "sample_id"}
    assert torch.equal(batch["sample_id"], rows)
    assert batch["inputs"].dtype == torch.float32
    assert torch.equal(batch["inputs"], every()[rows].float() / 127.5 - 1)
    assert (len(POOL), POOL.labels(), POOL.unlabelled() is POOL) == (3000, None, True)
    assert POOL.batch(rows)["inputs"].data_ptr() != POOL.batch(rows)["inputs"].data_ptr()


def test_grey_is_rec_601_of_the_coloured_patch() -> None:
    colour = Patches(photo(), (3, 16, 16), PatchSettings(count=30)).pixels(torch.arange(30)).double()
    grey = Patches(photo(), (1, 16, 16), PatchSettings(count=30)).pixels(torch.arange(30)).double()
    luma = (colour * torch.tensor([0.299, 0.587, 0.114]).double()[:, None, None]).sum(1, keepdim=True)
    assert (luma - grey).abs().max() <= 1.0


def test_worker_processes_get_the_image_and_not_the_patches() -> None:
    POOL.pixels(torch.arange(3000))
    copy = pickle.loads(pickle.dumps(POOL))
    assert len(pickle.dumps(POOL)) < 2 * photo().nbytes
    assert copy.fingerprint() == POOL.fingerprint()
    assert torch.equal(copy.pixels(torch.tensor([5])), every()[5:6])


def test_fingerprints_tell_image_settings_and_shape_apart() -> None:
    image = photo()
    touched = image.copy()
    touched[3, 4, 1] ^= 1
    pools = [
        Patches(image, (3, 8, 8)),
        Patches(touched, (3, 8, 8)),
        Patches(image, (1, 8, 8)),
        Patches(image, (3, 8, 8), PatchSettings(seed=1)),
        Patches(image, (3, 8, 8), PatchSettings(shear=10)),
    ]
    assert len({pool.fingerprint() for pool in pools}) == 5
    assert len({pool.source_digest for pool in pools}) == 2
    assert Patches(image.copy(), (3, 8, 8), PatchSettings(cloud_noise=0.5)).fingerprint() == pools[0].fingerprint()


@pytest.mark.parametrize("rows", [[0, 3000], [-1]], ids=["beyond", "negative"])
def test_indices_beyond_the_pool_are_refused(rows: list[int]) -> None:
    with pytest.raises(InputError, match=r"there is no patch (3000|-1): the pool holds 3,000, counted from 0"):
        POOL.batch(torch.tensor(rows))


def test_images_and_shapes_that_cannot_be_used() -> None:
    small = np.zeros((30, 40, 3), np.uint8)
    sentence = "an image of 40 x 30 pixels is too small for patches of 32 x 32: its short side must be at least 64"
    with pytest.raises(InputError, match=sentence):
        Patches(small, (3, 32, 32))
    assert len(Patches(np.zeros((64, 64, 3), np.uint8), (3, 32, 32)).pixels(torch.tensor([0]))) == 1
    with pytest.raises(InputError, match=r"one or three channels, not for samples of shape \(2, 8, 8\)"):
        Patches(small, (2, 8, 8))
    with pytest.raises(InputError, match=r"bytes of the shape \(height, width, 3\)"):
        Patches(small.astype(np.float32), (3, 8, 8))
    with pytest.raises(InputError, match="china cannot be cut into patches for clouds"):
        make_patches("china", (64, 3), "cloud")
    with pytest.raises(InputError, match="heads:0 cannot be cut into patches for images"):
        make_patches("heads:0", (3, 8, 8), "image")
    with pytest.raises(InputError, match="patches of heads:0 have no boxes and are no rooms"):
        make_patches("heads:0", (64, 3), "scene")


@pytest.mark.parametrize(
    "wrong",
    [
        *({"count": 0}, {"seed": -1}, {"area": (0.5, 0.2)}, {"area": (0.0, 1.0)}, {"ratio": (2.0, 1.0)}),
        *({"jitter": (0.4, 0.4, 0.4, 0.6)}, {"shear": 90}, {"flip": 1.5}, {"rotations": 3}),
    ],
    ids=lambda wrong: next(iter(wrong)) + str(next(iter(wrong.values()))),
)
def test_settings_that_make_no_sense(wrong: dict[str, object]) -> None:
    with pytest.raises(ValidationError, match=next(iter(wrong))):
        PatchSettings(**wrong)


def test_elementary_functions_agree_with_the_library() -> None:
    angle = np.linspace(-np.pi, np.pi, 1001)
    sine, cosine = patch_numbers.sine_and_cosine(angle)
    assert np.abs(sine - np.sin(angle)).max() < 3e-15
    assert np.abs(cosine - np.cos(angle)).max() < 3e-15
    draws = np.linspace(0, 1, 101)
    for low, high in ((0.75, 4 / 3), (1e-3, 1e4), (2.0, 2.0)):
        assert patch_numbers.log_uniform(draws, low, high) == pytest.approx(low * (high / low) ** draws, rel=1e-12)
    for value in (1e-9, 0.5, 1.0, 3.0, 12345.6):
        assert patch_numbers.natural_logarithm(value) == pytest.approx(math.log(value), rel=1e-14, abs=1e-15)


def test_draws_by_row_are_the_plain_sequence_of_the_stream() -> None:
    plain = Streams(9).draw("a name").random((5000, 8))
    rows = np.array([4999, 0, 1023, 1024, 1023])
    assert np.array_equal(patch_numbers.uniforms(9, "a name", rows, 8), plain[rows])
    assert np.array_equal(patch_numbers.sequence(9, "a name", 0, 20), plain.reshape(-1)[:20])
    assert not np.array_equal(patch_numbers.sequence(9, "a name", 1, 20), plain.reshape(-1)[:20])


def test_a_pool_makes_each_row_once_if_there_is_room() -> None:
    asked: list[int] = []

    def make(rows: torch.Tensor) -> torch.Tensor:
        asked.extend(rows.tolist())
        return rows[:, None].to(torch.uint8)

    kept = PatchPool(10, (1,), torch.uint8, make)
    assert kept.take(torch.tensor([3, 1, 3])).flatten().tolist() == [3, 1, 3]
    kept.take(torch.tensor([1, 2]))
    assert asked == [1, 3, 2]
    asked.clear()
    poor = PatchPool(10, (1,), torch.uint8, make, room=9)
    poor.take(torch.tensor([3, 1]))
    assert poor.take(torch.tensor([3])).flatten().tolist() == [3]
    assert asked == [3, 1, 3]


def test_noise_and_built_in_photos() -> None:
    noise = patch_source("noise:50x40")
    assert noise.shape == (40, 50, 3)
    assert np.array_equal(noise, patch_source("noise:50x40"))
    assert noise.mean() == pytest.approx(127.5, abs=6)
    assert len(np.unique(noise)) == 256
    assert patch_source("noise").shape == (512, 512, 3)
    assert patch_source("china").shape == patch_source("flower").shape == (427, 640, 3)
    assert not np.array_equal(patch_source("china"), patch_source("flower"))
