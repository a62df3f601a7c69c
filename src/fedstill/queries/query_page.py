"""The page of one client's query: the teachers, gain and forgetting, and the features afterwards."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fedstill.core.dataset import Subset, every_row
from fedstill.core.numbers import capital, listed, share
from fedstill.models.classifier import Classifier
from fedstill.queries.gain_curve import gain_curve
from fedstill.queries.query import recalls
from fedstill.queries.query_figures import Course, offered_figure, phases, probe_figure, recall_changes, recall_map
from fedstill.queries.transfer import Asked
from fedstill.report.feature_maps import Classes, Features, Floats, feature_maps
from fedstill.report.figure import Figure
from fedstill.report.page import PageSection
from fedstill.report.page_file import write_page


def write_asked_page(asked: Asked, path: Path, command: str = "") -> Path:
    """One HTML file that opens from disk without a network."""
    return write_page(
        path,
        "page.html.jinja",
        [
            PageSection("probe", "Who knows what", [_probe(asked)]),
            PageSection("change", "What was learnt and forgotten", [_changes(asked), _course(asked), _curve(asked)]),
            PageSection("features", "What the model makes of samples", [_features(asked), _recalls(asked)]),
        ],
        heading=f"A query for {_wanted(asked)}"
        if asked.offered
        else f"Client {asked.client} asks for {_wanted(asked)}",
        summary=_summary(asked),
        caution=_caution(asked),
        command=command,
    )


def _caution(asked: Asked) -> str:
    if not asked.offered:
        return "One client, one seed, judged on the test data of the whole run."
    unknown = [asked.classes[number] for number in asked.unmeasured]
    more = (
        f" There are no such samples of {listed(unknown)}: its gain is not known, and counts as 0." if unknown else ""
    )
    return f"One seed, judged on the held-out part of the asker's own data.{more}"


def _summary(asked: Asked) -> list[str]:
    metrics, peers, rule = asked.fate.metrics(), len(asked.probe.clients) - 1, asked.probe.rule
    asker = "The asker" if asked.offered else f"Client {asked.client}"
    teachers = [asked.name(number) if asked.offered else f"client {number}" for number in asked.teachers]
    return [
        f"Of {peers} peers, {len(asked.teachers)} teach {_wanted(asked)}: {listed(teachers)}. The rule {rule.name}"
        f" decides from what their models say of noise ({rule.setting} {rule.value:g}).",
        *(f"{capital(sentence)}." for sentence in asked.no_teacher()),
        f"{asker}'s average accuracy goes from {share(metrics['before'], 1)} to"
        f" {share(metrics['accuracy'], 1)}: what it asked for gains {100 * metrics['gain']:.1f} points, its own classes"
        f" lose {-100 * metrics['forgetting']:.1f} on average.",
        *([f"{capital(asked.warning)}."] if asked.warning else []),
    ]


def _wanted(asked: Asked) -> str:
    return listed([asked.classes[number] for number in asked.fate.query])


def _probe(asked: Asked) -> Figure:
    if asked.offered:
        title = "What the models say of noise"
        return offered_figure("probe", title, asked.names, asked.classes, asked.probe.guessed.tolist())
    return probe_figure("probe", "Classes in clients' data, and in what their models say of noise", asked.probe)


def _changes(asked: Asked) -> Figure:
    fate = asked.fate
    own = torch.nonzero(fate.local).flatten().tolist()
    return recall_changes(
        "changes",
        "Each class before and after",
        asked.classes,
        fate.before.tolist(),
        fate.after.tolist(),
        own,
        fate.query,
    )


def _course(asked: Asked) -> Figure:
    before, *told = asked.epochs
    return phases("course", "Average accuracy by epoch", [Course.heard("average accuracy", before[2], told)])


def _curve(asked: Asked) -> Figure:
    last, limit = asked.curve[-1], asked.settings["max_forgetting"]
    kept = (last.query_weight, last.phase, last.epoch)
    if asked.choice is not None:
        kept = (asked.choice["query_weight"], last.phase, int(asked.choice["epochs"]))
    return gain_curve("curve", "Gain against forgetting, by epoch and λ", asked.curve, kept, limit)


def _features(asked: Asked) -> Figure:
    """The features of test samples of the client's classes and of the queried ones, under every model."""
    labels = asked.plan.bundle.test.labels()
    assert labels is not None
    shown = torch.isin(labels, torch.tensor(_relevant(asked)))
    data = Subset(asked.plan.bundle.test, torch.nonzero(shown).flatten())
    panels = [
        Features(title, _read(asked, model, data), labels[shown].numpy(), _said_by(model))
        for title, model in _models(asked).items()
    ]
    return feature_maps("features", "Test samples by their features", panels, asked.classes)


def _recalls(asked: Asked) -> Figure:
    """The recall of the same classes, model by model."""
    relevant, test = _relevant(asked), asked.plan.bundle.test
    found = {
        title: recalls(asked.plan.task.score([model], test)["confusion"])[relevant].tolist()
        for title, model in _models(asked).items()
    }
    names = [asked.classes[number] for number in relevant]
    return recall_map("recalls", "Recall of each class, model by model", names, found, _wanted(asked))


def _models(asked: Asked) -> dict[str, Classifier]:
    """The client's models in the order in which they are compared."""
    return {"before": asked.before, **asked.stages, "after": asked.model}


def _relevant(asked: Asked) -> list[int]:
    """The client's own classes, and those it asks for."""
    return [int(number) for number in torch.nonzero(asked.fate.local | asked.fate.asked).flatten()]


def _read(asked: Asked, model: Classifier, data: Subset) -> Floats:
    model.eval()
    with torch.inference_mode():
        parts = [asked.plan.task.forward(model, data.batch(rows)).features.cpu() for rows in every_row(data)]
    return torch.cat(parts).double().numpy()


def _said_by(model: Classifier) -> Callable[[Floats], Classes]:
    def said(features: Floats) -> Classes:
        with torch.inference_mode():
            logits: Tensor = model.head(torch.from_numpy(features.astype(np.float32)))
        return logits.argmax(dim=1).numpy()

    return said
