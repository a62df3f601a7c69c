"""Built-in infant heads: a procedural shape model of craniosynostosis, so that point clouds need no download.

When a suture of the skull closes too early, growth across it stops and the head grows elsewhere instead, which
gives each suture its own shape: sagittal synostosis a long and narrow head (scaphocephaly), metopic a triangular
forehead (trigonocephaly), coronal a short and broad head if both sides closed (brachycephaly) and a skewed one if
one did (plagiocephaly). Classes and numbers of heads are those of the patient-derived model of "A statistical
shape model for radiation-free assessment and classification of craniosynostosis",
https://arxiv.org/abs/2201.03288, but no patient's data is in here: the anatomy is written down below. Its numbers
are chosen so that the size of the bounding box is not enough to tell the classes apart, while the points are.

Axes: x to the child's left, y to the front, z up. The origin lies in the middle of the braincase, and the
braincase is about 0.9 from it to the forehead before the cloud is normalised.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np
import numpy.typing as npt
import torch
from numpy.polynomial import legendre

from fedstill.core.dataset import ArrayDataset
from fedstill.core.streams import Streams
from fedstill.data.bundle import Bundle, Source, datasets
from fedstill.data.clouds import normalise
from fedstill.data.splits import hold_out

Floats = npt.NDArray[np.float64]

CLASSES = ("control", "coronal", "metopic", "sagittal")
POINTS = 2048
PER_CLASS = 100

# The neck: no points within 37 degrees of this direction, which is down and a little back.
NECK = np.array([0.0, -0.28, -0.96])
NECK_COSINE = 0.80

# Face and skull as bumps (negative: dents): direction, height, and width along x, y and z of the unit sphere.
# Those off the middle come in pairs.
FEATURES: tuple[tuple[tuple[float, float, float], float, tuple[float, float, float]], ...] = (
    ((0.00, 0.900, -0.42), 0.125, (0.080, 0.50, 0.100)),  # nose
    ((0.00, 0.950, -0.27), 0.040, (0.060, 0.50, 0.100)),  # bridge of the nose
    ((0.28, 0.920, -0.24), -0.100, (0.120, 0.50, 0.075)),  # eyes
    ((0.45, 0.710, -0.54), 0.085, (0.200, 0.40, 0.200)),  # cheeks
    ((0.00, 0.790, -0.62), 0.060, (0.130, 0.50, 0.050)),  # lips
    ((0.00, 0.620, -0.78), 0.060, (0.160, 0.50, 0.090)),  # chin
    ((0.95, -0.10, -0.28), 0.180, (0.500, 0.070, 0.150)),  # ears
    ((0.00, -0.98, 0.02), 0.050, (0.550, 0.50, 0.400)),  # occiput
    ((0.68, -0.42, 0.60), 0.045, (0.400, 0.40, 0.400)),  # parietal eminences
    ((0.40, 0.78, 0.48), 0.030, (0.300, 0.40, 0.300)),  # frontal eminences
)

# Standard deviations of smooth random variation, by the degree of the spherical harmonic.
SMOOTH = {2: 0.013, 3: 0.014, 4: 0.010}
MILDEST = 0.6  # the smallest severity of a synostosis, of 1
NOISE = 0.006  # of the scanner, per coordinate


def make_heads(
    per_class: int = PER_CLASS, points: int = POINTS, seed: int = 0
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
    """Clouds (4 x per_class, points, 3) class by class, and their labels.

    Every head has its own random generator, so it does not depend on how many others are made. Points are in random
    order, so the first n of a cloud are a fair sample of it. Clouds are centred on their mean and divided by their
    largest norm.

    >>> clouds, labels = make_heads(per_class=1, points=64)
    >>> clouds.shape, labels.tolist()
    ((4, 64, 3), [0, 1, 2, 3])
    """
    streams = Streams(seed)
    clouds = np.empty((len(CLASSES) * per_class, points, 3), np.float32)
    for label, name in enumerate(CLASSES):
        for index in range(per_class):
            clouds[label * per_class + index] = head(streams.draw("heads", name, index), name, points)
    return clouds, np.repeat(np.arange(len(CLASSES)), per_class)


_built_in = cache(make_heads)  # cached: generation takes a second, and studies repeat it; `heads` copies


@datasets.register("heads")
def heads(source: Source) -> Bundle:
    """Infant heads, healthy and with three kinds of craniosynostosis: 400 clouds of 2,048 points, built in."""
    inputs, labels = map(torch.from_numpy, _built_in())
    train, test = (ArrayDataset(inputs=inputs[rows], labels=labels[rows]) for rows in hold_out(labels))
    return Bundle(source.name, train, test, CLASSES, "cloud", (POINTS, 3))


def head(rng: np.random.Generator, name: str, points: int) -> Floats:
    """One normalised cloud of a class, or of one of the two coronal kinds.

    The shape is drawn completely before the points, so the same head can be sampled with more or fewer points.
    """
    shape = draw_shape(rng, name)
    cloud = shape(draw_directions(rng, points))
    cloud += rng.normal(0.0, NOISE, cloud.shape)
    return normalise(cloud)


def draw_directions(rng: np.random.Generator, points: int) -> Floats:
    """Unit vectors spread evenly over all of the sphere but the neck, in random order.

    A spiral of golden angles around the neck's axis, jittered by a third of the distance between points: as even
    as a scan, without a grid that a model could learn.
    """
    step = rng.permutation(points) + 0.5
    along = 1.0 - (1.0 + NECK_COSINE) * step / points
    angle = np.pi * (3.0 - np.sqrt(5.0)) * step + rng.uniform(0.0, 2.0 * np.pi)
    across = np.sqrt(1.0 - along**2)
    spiral = np.column_stack([across * np.cos(angle), across * np.sin(angle), along])
    spacing = np.sqrt(2.0 * np.pi * (1.0 + NECK_COSINE) / points)
    spiral += rng.normal(0.0, spacing / 3.0, spiral.shape)
    spiral /= np.linalg.norm(spiral, axis=1, keepdims=True)
    axes = np.array([[1.0, 0.0, 0.0], [0.0, -NECK[2], NECK[1]], -NECK])
    directions: Floats = spiral @ axes
    return directions


def draw_shape(rng: np.random.Generator, name: str) -> Callable[[Floats], Floats]:
    """A random head of a class as a function from directions to points of its surface."""
    index, height = rng.normal(0.82, 0.022), rng.normal(0.80, 0.020)
    vary = _draw_smooth_field(rng)
    heights = rng.normal(1.0, 0.15, len(FEATURES))
    deform = DEFORMITIES[name](rng)
    pose = _draw_pose(rng)

    def surface(directions: Floats) -> Floats:
        radius = 1.0 + vary(directions) + _features(directions, heights)
        skull = directions * radius[:, None] * np.array([0.90 * index, 0.90, height])
        return deform(_face_and_nape(skull)) @ pose

    return surface


def _draw_smooth_field(rng: np.random.Generator) -> Callable[[Floats], Floats]:
    """A random combination of spherical harmonics, equally likely in all orientations.

    A Legendre polynomial of u.d is a harmonic with axis d and mean square 1/(2l + 1), so 2l + 1 random axes give
    a field of exactly the wanted variance.
    """
    degrees = np.repeat(list(SMOOTH), [2 * degree + 1 for degree in SMOOTH])
    axes = rng.normal(size=(len(degrees), 3))
    axes /= np.linalg.norm(axes, axis=1, keepdims=True)
    weights = np.zeros((max(SMOOTH) + 1, len(degrees)))
    weights[degrees, np.arange(len(degrees))] = rng.normal(size=len(degrees)) * [SMOOTH[d] for d in degrees]

    def field(directions: Floats) -> Floats:
        values: Floats = legendre.legval(directions @ axes.T, weights, tensor=False).sum(axis=1)
        return values

    return field


def _features(directions: Floats, heights: Floats) -> Floats:
    """How far face, ears and skull bones stand out in each direction."""
    mirrored = np.column_stack([np.abs(directions[:, 0]), directions[:, 1:]])
    total = np.zeros(len(directions))
    for (centre, height, widths), factor in zip(FEATURES, heights, strict=True):
        distance = ((mirrored - np.array(centre)) / widths) ** 2
        total += factor * height * np.exp(-0.5 * distance.sum(axis=1))
    return total


def _step(values: Floats, low: float, high: float) -> Floats:
    """0 below `low`, 1 above `high`, smooth between."""
    t = np.clip((values - low) / (high - low), 0.0, 1.0)
    return t * t * (3.0 - 2.0 * t)


def _face_and_nape(skull: Floats) -> Floats:
    """Draw the lower front down to a chin and the lower back in to a neck."""
    x, y, z = skull.T
    low, front = _step(-z, 0.10, 0.75), _step(y, -0.25, 0.45)
    return np.column_stack(
        [
            x * (1.0 - 0.17 * low),
            y * (1.0 - 0.36 * low * (1.0 - front) + 0.04 * low * front),
            z * (1.0 + 0.20 * low * front),
        ]
    )


Deformity = Callable[[Floats], Floats]


def _severity(rng: np.random.Generator) -> float:
    return float(rng.uniform(MILDEST, 1.0))


def _regions(cloud: Floats) -> tuple[Floats, Floats, Floats]:
    """How much each point belongs to the braincase (not the face), to its front and to its back."""
    return _step(cloud[:, 2], -0.25, 0.20), _step(cloud[:, 1], -0.05, 0.75), _step(-cloud[:, 1], 0.0, 0.75)


def _control(rng: np.random.Generator) -> Deformity:
    return lambda cloud: cloud


def _sagittal(rng: np.random.Generator) -> Deformity:
    """Long and narrow, with a bulging forehead and occiput and a slight saddle between them."""
    s = _severity(rng)

    def deform(cloud: Floats) -> Floats:
        up, front, back = _regions(cloud)
        x, y, z = cloud.T
        saddle = np.exp(-(((y + 0.05) / 0.35) ** 2)) * _step(z, 0.3, 0.8)
        return np.column_stack(
            [
                x * (1.0 - 0.13 * s * (0.4 + 0.6 * up)),
                y * (1.0 + 0.12 * s) + 0.03 * s * up * (front - back),
                z - 0.03 * s * saddle,
            ]
        )

    return deform


def _metopic(rng: np.random.Generator) -> Deformity:
    """A triangular forehead with a ridge down its middle, and a head that is broader behind."""
    s = _severity(rng)

    def deform(cloud: Floats) -> Floats:
        up, front, back = _regions(cloud)
        x, y, z = cloud.T
        ridge = np.exp(-((x / 0.16) ** 2))
        return np.column_stack(
            [
                x * (1.0 - 0.30 * s * front * up) * (1.0 + 0.05 * s * back),
                y + 0.07 * s * front * up * ridge,
                z,
            ]
        )

    return deform


def _coronal(rng: np.random.Generator) -> Deformity:
    """Short, broad and high where both sides closed, skewed where one did; either is as likely."""
    return _brachycephaly(rng) if rng.random() < 0.5 else _plagiocephaly(rng)


def _brachycephaly(rng: np.random.Generator) -> Deformity:
    """The forehead steps back and grows up instead of out, and the whole head broadens."""
    s = _severity(rng)

    def deform(cloud: Floats) -> Floats:
        up, front, _ = _regions(cloud)
        x, y, z = cloud.T
        return np.column_stack(
            [
                x * (1.0 + 0.06 * s),
                y * (1.0 - 0.11 * s) - 0.06 * s * front * up,
                z * (1.0 + 0.07 * s * up),
            ]
        )

    return deform


def _plagiocephaly(rng: np.random.Generator) -> Deformity:
    """The forehead is flat on the side that closed and full on the other, and the face turns a little."""
    s, side = _severity(rng), 1.0 if rng.random() < 0.5 else -1.0

    def deform(cloud: Floats) -> Floats:
        up, front, back = _regions(cloud)
        x, y, z = cloud.T
        closed = np.tanh(side * x / 0.30)
        return np.column_stack(
            [
                x * (1.0 + 0.03 * s * up * (1.0 - closed)) + 0.04 * side * s * front * (1.0 - up),
                y - 0.17 * s * front * up * closed - 0.03 * s * front * up - 0.05 * s * back * up * closed,
                z,
            ]
        )

    return deform


DEFORMITIES: dict[str, Callable[[np.random.Generator], Deformity]] = {
    "control": _control,
    "coronal": _coronal,
    "brachycephaly": _brachycephaly,
    "plagiocephaly": _plagiocephaly,
    "metopic": _metopic,
    "sagittal": _sagittal,
}


def _draw_pose(rng: np.random.Generator) -> Floats:
    """A small random rotation, as in real scans."""
    turn, nod, tilt = np.radians(rng.normal(0.0, [4.0, 2.4, 2.4]))
    about_z = [[np.cos(turn), -np.sin(turn), 0.0], [np.sin(turn), np.cos(turn), 0.0], [0.0, 0.0, 1.0]]
    about_x = [[1.0, 0.0, 0.0], [0.0, np.cos(nod), -np.sin(nod)], [0.0, np.sin(nod), np.cos(nod)]]
    about_y = [[np.cos(tilt), 0.0, np.sin(tilt)], [0.0, 1.0, 0.0], [-np.sin(tilt), 0.0, np.cos(tilt)]]
    return np.array(about_z) @ np.array(about_x) @ np.array(about_y)
