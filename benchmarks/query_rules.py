"""Rules, limits and mixtures of query-based transfer, compared on the same clients' models.

`python -m benchmarks.query_rules --out RUNS --results FILE` from the project's folder. The models that clients train
alone are those of `fedstill study query-probe --preset lite` (found again in its folder of runs, else trained); every
method then answers the same queries from them, by the exchange that a run of the method uses. Local training is most of
the cost of such a comparison, and is done once.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import torch

import fedstill
from fedstill.core.dataset import Subset
from fedstill.core.hardware import one_thread
from fedstill.core.kinds import state_of
from fedstill.core.message import Message, under
from fedstill.core.protocols import Client, RoundContext
from fedstill.core.streams import Streams
from fedstill.core.task import Tensors
from fedstill.methods import methods
from fedstill.methods.base import MODEL
from fedstill.queries.peers import ARCHITECTURE, PEERS, QUERY, SAMPLES
from fedstill.queries.probe_rule import UNMATCHED, from_table
from fedstill.queries.query import Answered, Queries, recalls
from fedstill.runtime.experiment import choose
from fedstill.runtime.plan import Simulation, make_plan
from fedstill.runtime.result import Run
from fedstill.studies import Study

CASES = ("CIFAR-10, few classes", "blood cells, few classes")
EPOCHS = 10  # of the transfer; the paper has 25 on CIFAR-10
PUBLISHED = {"probe_rule": "threshold"}
METHODS: dict[str, dict[str, Any]] = {
    "local": {},
    "ensemble": {"name": "ensemble"},
    "ensemble for the query": {"name": "ensemble", "members": "query"},
    "CLUE-style": {"name": "clue"},
    "KD": {"name": "naive-kd"},
    "QKT, as published": {"name": "qkt", **PUBLISHED},
    "QKT": {"name": "qkt"},
    "QKT, limit 10": {"name": "qkt", "max_forgetting": 10.0},
    "QKT, mixture": {"name": "qkt", "combine": "mixture"},
}
# Why does an ensemble win? Its vote for the query is distilled into one model, on the client's own samples, which have
# none of the queried classes, or on such samples as well (without labels, from other clients): a control that no real
# client can have.
DISTILLED = {"vote distilled, own samples": False, "vote distilled, samples of queried classes too": True}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("runs"))
    parser.add_argument("--results", type=Path, required=True)
    parser.add_argument("--seed", type=int, action="append")
    parser.add_argument("--case", action="append")
    parser.add_argument("--method", action="append")
    given = parser.parse_args(arguments)
    rows: list[dict[str, Any]] = json.loads(given.results.read_text()) if given.results.exists() else []
    for run in local_runs(given.out, given.case or CASES, given.seed or [7, 42, 123]):
        done = {(row["case"], row["seed"], row["queries"], row["method"]) for row in rows}
        for row in answers(*run, given.method or [*METHODS, *DISTILLED], done):
            rows.append(row)
            given.results.parent.mkdir(parents=True, exist_ok=True)
            given.results.write_text("[\n" + ",\n".join(map(json.dumps, rows)) + "\n]\n")
    print(table(rows))


def local_runs(out: Path, cases: Sequence[str], seeds: Sequence[int]) -> Iterator[tuple[str, Run]]:
    """The clients' models, by case and seed."""
    for seed in seeds:
        for cell in Study("query-probe", {"seed": seed}, preset="lite").expand():
            if cell.labels["case"] in cases:
                yield cell.labels["case"], fedstill.run(cell.experiment.model_dump(mode="json"), out=out)


def answers(
    case: str, run: Run, names: Sequence[str], done: set[tuple[str, int, str, str]]
) -> Iterator[dict[str, Any]]:
    """One row for each kind of query and method: means over clients."""
    plan = make_plan(run.experiment)
    models = {who.id: state_of(run.built(client=who.id)) for who in plan.profiles}
    before = {number: _recalls(plan, plan.task.build(run.experiment.model, state)) for number, state in models.items()}
    for kind in ("single", "multi"):
        for name in names:
            if (case, run.experiment.seed, kind, name) in done:
                continue
            queries = Queries.model_validate({"classes": kind})
            with one_thread():
                each = [_answer(plan, models, before[who.id], who.id, queries, name) for who in plan.profiles]
            yield {"case": case, "seed": run.experiment.seed, "queries": kind, "method": name, **_means(each)}


def _answer(
    plan: Simulation,
    models: Mapping[int, Tensors],
    before: torch.Tensor,
    number: int,
    queries: Queries,
    name: str,
) -> dict[str, float]:
    classes = len(plan.task.classes)
    client = _client(plan, models, number)
    labels = client.data.labels()
    assert labels is not None
    counts = torch.bincount(labels, minlength=classes)
    asked = queries.of(number, counts, Streams(plan.experiment.seed))
    flags = torch.zeros(classes, dtype=torch.bool)
    flags[list(asked)] = True
    after, missing = before, 0
    if name in DISTILLED:
        after = _recalls(plan, _distilled(plan, models, number, flags, DISTILLED[name]))
    elif name != "local":
        settings = dict(METHODS[name])
        if settings["name"] in ("qkt", "naive-kd"):
            settings["transfer_epochs"] = EPOCHS
        model, client = _exchanged(plan, models, number, flags, settings)
        after = _recalls(plan, model)
        missing = len(from_table(client.state[UNMATCHED])) if UNMATCHED in client.state else 0
    fate = Answered(before, after, counts, asked)
    return {**fate.metrics(), "collapsed": len(fate.collapsed), "no_teacher": missing, "asked": len(asked)}


def _client(plan: Simulation, models: Mapping[int, Tensors], number: int) -> Client:
    return plan.clients(plan.profiles[number], under(MODEL, models[number]), _context(plan))


def _context(plan: Simulation) -> RoundContext:
    return RoundContext.of(plan.streams, 0, 1, len(plan.profiles), "transfer")


def _exchanged(
    plan: Simulation, models: Mapping[int, Tensors], number: int, flags: torch.Tensor, settings: Mapping[str, Any]
) -> tuple[torch.nn.Module, Client]:
    """The client's model after the exchange of a method, and the client."""
    client = _client(plan, models, number)
    client.state = {**client.state, QUERY: flags}
    method = methods[settings["name"]](choose("method", settings).settings, plan.task, plan.experiment.training)
    facts = {ARCHITECTURE: torch.tensor(0), SAMPLES: torch.tensor(0)}
    offered = [under(f"{PEERS}{other}/", {**models[other], **facts}) for other in models if other != number]
    request = {key: tensor for one in offered for key, tensor in one.items()}
    method.exchanges({}, 0)[-1].reply(client, Message(request), _context(plan))
    personal = method.personalise({}, client.state)
    assert personal is not None
    return method.assemble(plan.profiles[number].architecture, personal), client


def _distilled(
    plan: Simulation, models: Mapping[int, Tensors], number: int, flags: torch.Tensor, further: bool
) -> torch.nn.Module:
    """The client's model after learning the vote for its query, on its own samples or with further ones."""
    vote, _ = _exchanged(plan, models, number, flags, METHODS["ensemble for the query"])
    rows = plan.clients.shards.rows(number)
    if further:
        every, asked = plan.clients.data.labels(), torch.nonzero(flags).flatten()
        assert every is not None
        others = torch.nonzero(torch.isin(every, asked)).flatten()
        generator = torch.Generator().manual_seed(1000 * plan.experiment.seed + number)
        drawn = others[torch.randperm(len(others), generator=generator)[: len(rows)]]
        rows = torch.cat([rows, drawn[~torch.isin(drawn, rows)]])
    data = Subset(plan.clients.data, rows)
    student = plan.task.build(plan.profiles[number].architecture, models[number])
    optimiser = plan.experiment.training.make_optimiser(student.parameters())
    generator = torch.Generator().manual_seed(plan.experiment.seed)
    for _ in range(EPOCHS):
        student.train()
        for batch in torch.randperm(len(data), generator=generator).split(plan.experiment.training.batch):
            samples = data.batch(batch)
            with torch.no_grad():
                wanted = plan.task.forward(vote.eval(), samples).log_probabilities
            found = plan.task.forward(student, samples).log_probabilities
            loss = torch.nn.functional.kl_div(found, wanted, log_target=True, reduction="batchmean")
            optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
    return student


def _means(each: Sequence[dict[str, float]]) -> dict[str, float]:
    return {name: round(fmean(one[name] for one in each), 6) for name in each[0]}


def _recalls(plan: Simulation, model: torch.nn.Module) -> torch.Tensor:
    return recalls(plan.task.score([model], plan.bundle.test)["confusion"])


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Means over seeds, as Markdown: accuracy with its deviation, and gain and forgetting in brackets."""
    cases, kinds = (list(dict.fromkeys(row[key] for row in rows)) for key in ("case", "queries"))
    lines = []
    for kind in kinds:
        lines += [f"\n{kind}\n", f"| | {' | '.join(cases)} |", "|---|" + "---|" * len(cases)]
        for name in dict.fromkeys(row["method"] for row in rows):
            cells = [
                _cell([row for row in rows if (row["case"], row["queries"], row["method"]) == (case, kind, name)])
                for case in cases
            ]
            lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _cell(rows: Sequence[dict[str, Any]]) -> str:
    if not rows:
        return ""
    accuracy = [100 * row["accuracy"] for row in rows]
    spread = f" ± {stdev(accuracy):.1f}" if len(rows) > 1 else ""
    gain, lost = (100 * fmean(row[name] for row in rows) for name in ("gain", "forgetting"))
    return f"{fmean(accuracy):.1f}{spread} ({gain:+.1f}, {lost:.1f})"


if __name__ == "__main__":
    main()
