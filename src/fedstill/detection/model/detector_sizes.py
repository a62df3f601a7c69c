"""The sizes that define a detector variant: a named model is a set of sizes, and each can be overridden."""

from __future__ import annotations

from dataclasses import dataclass, replace

from fedstill.core.errors import InputError
from fedstill.models.pointnet2_levels import Ball


@dataclass(frozen=True)
class DetectorSizes:
    """Tokens from points, layers of encoder and decoder, queries."""

    width: int
    heads: int
    encoder_layers: int
    decoder_layers: int
    feedforward: int
    tokens: int
    radius: float  # metres
    neighbours: int
    floor: float  # points lower than this above the lowest ones are left out, metres; 0: none are
    queries: int
    candidates: int  # the most object-like tokens, of which the queries are chosen
    prompts: int  # prefix keys and values of each encoder layer
    angle_bins: int  # of headings; 1: all headings are 0 and not predicted
    dropout: float

    def __post_init__(self) -> None:
        if not self.queries <= self.candidates <= self.tokens:
            raise InputError(
                f"queries are chosen of candidates, and these of tokens: {self.queries} of {self.candidates} "
                f"of {self.tokens} cannot be"
            )
        self.check_layers()

    def check_layers(self) -> None:
        if self.width % self.heads:
            raise InputError(f"a width of {self.width} cannot be shared out between {self.heads} heads")
        least = min(self.encoder_layers, self.decoder_layers, self.queries, self.prompts, self.angle_bins)
        if least < 1:
            raise InputError(
                "a detector needs at least one layer of each kind, one query, one prompt and one angle bin"
            )

    @property
    def ball(self) -> Ball:
        return Ball(self.tokens, self.radius, self.neighbours)


@dataclass(frozen=True)
class PublishedSizes(DetectorSizes):
    """The sizes of a detector as published: queries are chosen of all tokens, and no points are left out."""

    decoder_feedforward: int = 256
    head_dropout: float = 0.3

    def __post_init__(self) -> None:
        if self.candidates or self.floor:
            raise InputError("a published detector uses all points and tokens: leave floor and candidates at 0")
        if self.queries > self.tokens:
            raise InputError(f"queries are chosen of tokens: {self.queries} of {self.tokens} cannot be")
        self.check_layers()


# As given in the paper, and otherwise as in public detectors of this kind: for axis-aligned boxes as in ScanNet, and
# for rotated ones as in SUN RGB-D.
PAPER = PublishedSizes(
    width=256,
    heads=4,
    encoder_layers=6,
    decoder_layers=8,
    feedforward=128,
    tokens=2048,
    radius=0.2,
    neighbours=64,
    floor=0.0,
    queries=256,
    candidates=0,
    prompts=10,
    angle_bins=1,
    dropout=0.1,
)
TURNED = replace(PAPER, queries=128, angle_bins=12)
MASKED = replace(PAPER, encoder_layers=3)
MASKED_TURNED = replace(TURNED, encoder_layers=3)
LITE = DetectorSizes(
    width=64,
    heads=4,
    encoder_layers=3,
    decoder_layers=2,
    feedforward=128,
    tokens=128,
    radius=0.4,
    neighbours=32,
    floor=0.1,
    queries=24,
    candidates=64,
    prompts=10,
    angle_bins=1,
    dropout=0.0,
)
LITE_TURNED = replace(LITE, angle_bins=12)
SMALL_LITE = replace(LITE, width=32, encoder_layers=2, decoder_layers=1, feedforward=64, neighbours=16)
