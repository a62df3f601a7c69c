"""An audit on one page of Markdown, for a reviewer: what was found, the figures, and how to repeat it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from fedstill._version import __version__
from fedstill.audit.verdicts import SEVERITIES, Audit, Interval, PairVerdict
from fedstill.core.errors import InputError
from fedstill.core.files import write_atomically
from fedstill.core.numbers import MISSING, count, listed, points

LINES = 8  # of a table: the page stays one page


def checked_summary(path: Path) -> Path:
    """Refuse, before any work, a page that cannot be written."""
    if path.suffix.lower() != ".md":
        raise InputError(f"--summary writes Markdown: name a file that ends in .md, not {path.name}")
    if path.is_dir() or not path.parent.is_dir():
        raise InputError(f"--summary cannot write {path}: its folder is not there, or it is a folder itself")
    return path


def write_summary(audit: Audit, path: Path, command: str = "") -> None:
    write_atomically(checked_summary(path), reviewer_summary(audit, command).encode())


def reviewer_summary(audit: Audit, command: str = "") -> str:
    """The page as text."""
    parts = [
        f"# Audit of {audit.evidence.name}",
        "\n".join(audit.summary[:1]),
        " ".join(audit.summary[1:]),
        *_findings(audit),
        *_pairs(audit),
        *_teachers(audit),
        _how(audit, command),
    ]
    return "\n\n".join(filter(None, parts)) + "\n"


def _findings(audit: Audit) -> Iterator[str]:
    number = Counter(one.severity for one in audit.findings)
    found = [f"{number[severity]} {severity}" for severity in SEVERITIES if number[severity]]
    yield f"## Findings: {listed(found) if found else 'none'}"
    shown = audit.findings[: 2 * LINES]
    if shown:
        rows = [(one.severity, f"`{one.topic}`", f"{one.title}. {one.evidence}") for one in shown]
        yield _table(("severity", "finding", "evidence"), rows)
    if len(audit.findings) > len(shown):
        yield f"{len(audit.findings) - len(shown)} more are not shown."


def _pairs(audit: Audit) -> Iterator[str]:
    if not audit.pairs:
        return
    words = Counter(pair.word for pair in audit.pairs)
    yield f"## Students: {listed([f'{number} {word}' for word, number in words.most_common()])}"
    ranked = sorted(audit.pairs, key=_conspicuous, reverse=True)[:LINES]
    rows = [
        (
            pair.teacher,
            pair.objective,
            _percent(pair.labelled),
            _percent(pair.free),
            _with_interval(pair.masking, pair.interval),
            _with_interval(pair.gain, pair.gain_interval),
            pair.word,
        )
        for pair in ranked
    ]
    yield _table(("teacher", "objective", "with labels", "without", "masking", "gain", "verdict"), rows)
    if len(audit.pairs) > len(rows):
        yield f"The {len(rows)} most conspicuous of {len(audit.pairs)} pairs; accuracies in %, differences in points."


def _conspicuous(pair: PairVerdict) -> tuple[float, float]:
    return pair.masking if pair.masking is not None else -2.0, pair.recovery if pair.recovery is not None else -2.0


def _teachers(audit: Audit) -> Iterator[str]:
    if not audit.teachers:
        return
    ranked = sorted(audit.teachers, key=lambda one: -(one.accuracy or 0.0))
    shown = [*ranked[: LINES // 2], *ranked[LINES // 2 :][-LINES // 2 :]]
    chance = "" if audit.chance is None else f" (chance level {_percent(audit.chance)} %)"
    yield f"## {'Teachers' if audit.pairs else 'Methods'}{chance}"
    yield _table(
        ("name", "accuracy in %", "verdict"),
        [(one.teacher, _with_interval(one.accuracy, one.interval, signed=False), one.word) for one in shown],
    )
    if len(ranked) > len(shown):
        yield f"The best and the worst {LINES // 2} of {len(ranked)}."


def _how(audit: Audit, command: str) -> str:
    evidence = audit.evidence
    seeds = {one.seed for one in evidence.teachers} | {one.seed for one in evidence.students}
    size = evidence.test_size or (sum(evidence.class_counts) if max(evidence.class_counts, default=0) > 1 else 0)
    told = [
        f"Fedstill {__version__}, threshold {points(audit.delta)}",
        count(len(seeds), "seed"),
        f"{size:,} test samples" if size else "the size of the test set is not known",
        "intervals in brackets have a level of 95 %",
    ]
    made = [f"`{one}`" for one in filter(None, (command, *evidence.commands))]
    return f"{'; '.join(told)}." + (f" Made with {listed(list(dict.fromkeys(made)))}." if made else "")


def _percent(value: float | None) -> str:
    return MISSING if value is None else f"{100 * value:.1f}"


def _with_interval(value: float | None, interval: Interval | None, signed: bool = True) -> str:
    if value is None:
        return MISSING
    middle = f"{100 * value:+.1f}" if signed else _percent(value)
    if interval is None or interval.how == "none":
        return middle
    return f"{middle} [{100 * interval.low:.1f}, {100 * interval.high:.1f}]"


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """In Markdown, where a bar would end a cell."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(
        f"| {' | '.join(cell.replace('|', '/').replace(chr(10), ' ') for cell in line)} |" for line in lines
    )
