"""Tables with a planted artefact, which must be named, and honest ones, of which nothing false may be said."""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest

from fedstill.audit import Audit, judge, read_table
from fedstill.audit.conditions import TOPICS
from fedstill.audit.evidence_table import read_rows
from fedstill.core.errors import InputError

from .answers import ANSWERS, SINCERE
from .attacks import ATTACKS, FAIR
from .claims import CLAIMS
from .copies import COPIES, REFUSED
from .forgeries import FORGERIES, PLAIN
from .honest import HONEST
from .referees import CANDID, REFEREES
from .strangers import KINDLY, STRANGERS
from .worlds import Generator, Table

PLANTED = (*COPIES, *CLAIMS, *ATTACKS, *FORGERIES, *STRANGERS, *ANSWERS, *REFEREES)
FAULTLESS = (*HONEST, *FAIR, *PLAIN, *KINDLY, *SINCERE, *CANDID)
FIXED = 20261118
FRESH = 12  # draws of each generator, by `make test-all`
# Artefacts that chance can make, too: two methods that agree in three seeds are named where that is rarer than one in a
# thousand (43 of 60 draws when this was written). So many draws of twelve may pass.
MAY_PASS = {"methods_equal_in_three_seeds": 8}
GOOD = ("Students are what", "Distillation helped", "No masking was shown, and", "None of these objectives gives")
# Topics that an honest table may have: they say what is not known, or what noise hides.
HARMLESS = {
    "no-control",
    "no-class-counts",
    "noise-teachers",
    "noise-objectives",
    "one-seed-teachers",
    "one-seed-objectives",
}


def drawn(generator: Generator, seed: int) -> Table:
    return generator(np.random.default_rng(seed))


def named(generators: Iterable[Generator]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("generator", generators, ids=lambda one: one.__name__)


def through_file(table: Table, folder: Path) -> Audit:
    path = folder / "table.csv"
    path.write_text(table.csv(), encoding="utf-8")
    return judge(read_table(path, table.counts))


def check_planted(table: Table, found: Audit) -> None:
    topics = {one.topic for one in found.findings}
    assert table.expected <= topics
    first = found.summary[0]
    assert not first.startswith(GOOD) or "Reservations:" in first, first
    for finding in found.findings:
        assert finding.evidence, finding.topic
        assert finding.advice, finding.topic


def check_honest(table: Table, found: Audit) -> None:
    told = {one.topic: one.evidence for one in found.findings if one.topic not in HARMLESS | table.allowed}
    assert told == {}
    assert "serious" not in {one.severity for one in found.findings}
    first = found.summary[0]
    assert not first.startswith(("Labels hide", "Teachers do not explain", "These results", "The label-free")), first


def check_refused(table: Table) -> None:
    with pytest.raises(InputError) as caught:
        read_rows(table.rows, table.counts)
    assert all(part in str(caught.value) for part in table.refused), caught.value


def test_there_are_enough_tables() -> None:
    """Forty or more planted, at least two for each kind, and 25 honest ones."""
    assert len(COPIES) + len(CLAIMS) + len(REFUSED) >= 40
    assert len(HONEST) >= 25
    kinds = [topic for generator in (*COPIES, *CLAIMS) for topic in drawn(generator, FIXED).expected]
    assert {topic for topic in kinds if kinds.count(topic) < 2} == set()
    assert set(kinds) <= set(TOPICS)


def test_a_generator_varies_with_its_seed_alone() -> None:
    for generator in (*PLANTED, *REFUSED, *FAULTLESS):
        assert drawn(generator, 1).rows == drawn(generator, 1).rows
        assert drawn(generator, 1).rows != drawn(generator, 2).rows


@named(PLANTED)
def test_planted(generator: Generator, tmp_path: Path) -> None:
    table = drawn(generator, FIXED)
    check_planted(table, through_file(table, tmp_path))


@named(REFUSED)
def test_refused(generator: Generator) -> None:
    check_refused(drawn(generator, FIXED))


@named(FAULTLESS)
def test_honest(generator: Generator, tmp_path: Path) -> None:
    table = drawn(generator, FIXED)
    check_honest(table, through_file(table, tmp_path))


@pytest.mark.slow
@named((*PLANTED, *REFUSED, *FAULTLESS))
def test_fresh_seeds(generator: Generator) -> None:
    """Not the same tables every time; a failure names the seeds.

    Every planted artefact must be named. Of an honest generator's tables one may get a false finding: intervals of 95 %
    over three seeds, for many pairs, are sometimes beside the truth (2 of 900 tables when this was written).
    """
    failed: list[str] = []
    for _ in range(FRESH):
        seed = secrets.randbits(32)
        table = drawn(generator, seed)
        try:
            if generator in REFUSED:
                check_refused(table)
            elif generator in FAULTLESS:
                check_honest(table, judge(read_rows(table.rows, table.counts)))
            else:
                check_planted(table, judge(read_rows(table.rows, table.counts)))
        except (AssertionError, InputError) as error:
            failed.append(f"{generator.__name__} with seed {seed}: {error}")
    assert len(failed) <= MAY_PASS.get(generator.__name__, int(generator in FAULTLESS)), failed
