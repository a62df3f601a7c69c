"""`fedstill export` and `fedstill latency`: models that leave, and how fast they are."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fedstill.cli.pairing import paired
from fedstill.cli.screen import console, print_json, table
from fedstill.core.errors import InputError
from fedstill.core.numbers import MISSING, share, size
from fedstill.core.plugins import use_plugins
from fedstill.export.export_run import Outcome
from fedstill.export.export_run import export as write
from fedstill.export.latency import Measured, Protocol, measure, ratios
from fedstill.export.subject import Subject
from fedstill.runtime.result import Run


def export(
    run: Path,
    file: Path,
    which: str,
    client: int | None,
    architecture: str | None,
    int8: bool,
    data_root: Path | None,
    plugins: Sequence[Path],
    as_json: bool,
) -> None:
    outcome = write(
        run,
        file,
        which=which,
        client=client,
        architecture=architecture,
        int8=int8,
        data_root=data_root,
        plugins=plugins,
    )
    if as_json:
        print_json(_as_dict(run, outcome))
        return
    written, int8_ = outcome.file, outcome.int8
    console.print(f"{written.path}  {size(written.bytes)}", soft_wrap=True)
    told = "test and random inputs" if outcome.inputs == "test data" else "random inputs (the test data are not here)"
    console.print(
        f"agrees with PyTorch within {written.difference:.1e} on {written.samples} {told}"
        + (", before its weights became 8-bit" if int8_ else ""),
        soft_wrap=True,
    )
    if int8_:
        rows = [
            ("float", size(int8_.float_bytes), share(int8_.float_accuracy)),
            ("8-bit", size(written.bytes), share(int8_.accuracy)),
        ]
        table("", ("weights", "size", "test accuracy"), rows, right=(1, 2))


def latency(
    runs: Sequence[Path],
    which: str,
    architectures: Sequence[str],
    passes: int,
    seconds: float,
    data_root: Path | None,
    plugins: Sequence[Path],
    as_json: bool,
) -> None:
    chosen = paired(runs, architectures, "--architecture")
    if not 1 <= len(chosen) <= 9:
        raise InputError(f"name one to nine runs, not {len(chosen)}")
    if passes < 1 or seconds <= 0:
        raise InputError(f"measuring takes at least one pass and some time, not {passes} and {seconds:g} s")
    use_plugins(plugins)
    subjects = [Subject(Run(run), which, None, data_root, architecture) for run, architecture in chosen]
    measured = measure(subjects, Protocol(passes=passes, seconds=seconds))
    compared = ratios(*measured) if len(measured) == 2 else None
    if as_json:
        print_json({"runs": [one.to_dict() for one in measured], "ratios": compared})
        return
    _show_sizes(measured)
    _show_times(measured)
    if len(measured) == 2:
        console.print("\nratio: the first run's median over the second's")
    if measured[0].onnx_bytes is None:
        console.print("onnxruntime is not here: pip install 'fedstill[export]' to measure it too")


def _show_sizes(measured: Sequence[Measured]) -> None:
    rows = [
        (
            str(number),
            one.model,
            f"{one.parameters:,}",
            size(one.bytes),
            MISSING if one.onnx_bytes is None else size(one.onnx_bytes),
        )
        for number, one in enumerate(measured, start=1)
    ]
    for number, one in enumerate(measured, start=1):
        console.print(f"{number}  {one.run}", soft_wrap=True)
    console.print()
    table("", ("", "model", "parameters", "in memory", "ONNX"), rows, right=(2, 3, 4))
    console.print()


def _show_times(measured: Sequence[Measured]) -> None:
    """A line for each runtime, batch and number of threads, two columns for each run."""
    pair = len(measured) == 2
    columns = ["milliseconds", "batch", "threads"]
    for number in range(1, len(measured) + 1):
        mark = f" {number}" if len(measured) > 1 else ""
        columns += [f"median{mark}", f"p95{mark}"]
    rows = []
    for each in zip(*(one.latency for one in measured), strict=True):
        first = each[0]
        row = [first.runtime, str(first.batch), str(first.threads)]
        for one in each:
            row += [_milliseconds(one.median), _milliseconds(one.p95)]
        rows.append([*row, f"{each[0].median / each[1].median:.2f}"] if pair else row)
    seed = [one.seed for one in measured]
    row = [f"pytorch, mean of {seed[0].passes}", str(seed[0].batch), "1"]
    for one_seed in seed:
        row += [_milliseconds(one_seed.mean), ""]
    rows.append([*row, f"{seed[0].mean / seed[1].mean:.2f}"] if pair else row)
    names = [*columns, "ratio"] if pair else columns
    table("", names, rows, right=tuple(range(1, len(names))))
    inputs = " and ".join(sorted({one.inputs for one in measured}))
    fewest = min(one.passes for each in measured for one in each.latency)
    console.print(f"\nat least {fewest} passes each, in turns, on {inputs}")


def _milliseconds(value: float) -> str:
    """Three digits that count.

    >>> _milliseconds(0.1234), _milliseconds(12.34), _milliseconds(1234.5)
    ('0.123', '12.3', '1234')
    """
    return (
        f"{value:.3f}"
        if value < 1
        else f"{value:.2f}"
        if value < 10
        else f"{value:.1f}"
        if value < 100
        else f"{value:.0f}"
    )


def _as_dict(run: Path, outcome: Outcome) -> dict[str, object]:
    file, int8 = outcome.file, outcome.int8
    return {
        "run": str(run),
        "file": str(file.path),
        "bytes": file.bytes,
        "difference": file.difference,
        "samples": file.samples,
        "inputs": outcome.inputs,
        "int8": None
        if int8 is None
        else {"float_bytes": int8.float_bytes, "float_accuracy": int8.float_accuracy, "accuracy": int8.accuracy},
    }
