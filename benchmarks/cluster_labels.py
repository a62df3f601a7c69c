"""Do clusters of clients by pixel statistics tell anything about their labels?

    python -m benchmarks.cluster_labels

cuts the clients of recipe `dropout` (preset lite), clusters them by their pixels' mean and deviation, as there, and by
their labels, and prints the correlation of the two statistics over clients and over images, and the share of the
variance of clients' label shares that lies between clusters. Random clusters of the same sizes are the control: their
mean share, and how many of 1,000 reach that of the clusters.
"""

from __future__ import annotations

import argparse

import numpy as np
import torch

from fedstill.core.dataset import Subset, class_counts, every_row
from fedstill.devices.clusters import grouped
from fedstill.participation.surveys import moments
from fedstill.runtime.assemble import make_experiment
from fedstill.runtime.plan import Simulation, make_plan
from fedstill.runtime.recipes import recipe_by


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="mnist[:10%]")
    parser.add_argument("--clusters", type=int, default=4)
    parser.add_argument("--seeds", type=int, nargs="+", default=[7, 42, 123])
    given = parser.parse_args()
    torch.set_num_threads(1)
    recipe = recipe_by("dropout", "lite", None).experiment
    for seed in given.seeds:
        plan = make_plan(make_experiment({**recipe, "data": given.data, "seed": seed}))
        pixels, labels = _tables(plan)
        print(f"seed {seed}: mean and deviation correlate at {np.corrcoef(pixels.T)[0, 1]:.3f} over clients,", end=" ")
        print(f"{_over_images(plan):.3f} over images")
        for name, table in (("pixels", pixels), ("labels", labels)):
            found = grouped(table, given.clusters, 8, seed)
            share, control, reached = against_chance(labels, found, np.random.default_rng(seed))
            print(f"  by {name}: {share:.1%} of label variance between clusters, at random {control:.1%}", end=" ")
            print(f"(reached by {reached:.1%})")


def _tables(plan: Simulation) -> tuple[np.ndarray, np.ndarray]:
    """For each client mean and deviation of its pixels, and the share of each class."""
    shards = [Subset(plan.clients.data, plan.clients.shards.rows(who.id)) for who in plan.profiles]
    found = [moments(shard) for shard in shards]
    pixels = [[float(one["mean"]), float(one["std"])] for one in found]
    counts = [class_counts(shard, len(plan.task.classes)).double().numpy() for shard in shards]
    return np.array(pixels), np.array([one / one.sum() for one in counts])


def _over_images(plan: Simulation) -> float:
    data = plan.clients.data
    inputs = torch.cat([data.batch(rows)["inputs"].flatten(1) for rows in every_row(data)]).double()
    return float(np.corrcoef(inputs.mean(dim=1).numpy(), inputs.std(dim=1).numpy())[0, 1])


def between(labels: np.ndarray, clusters: np.ndarray) -> float:
    """The share of the variance of the rows that lies between clusters.

    >>> rows = np.array([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.0, 1.0]])
    >>> float(between(rows, np.array([0, 0, 1, 1]))), float(between(rows, np.array([0, 1, 0, 1])))
    (1.0, 0.0)
    """
    centred = labels - labels.mean(axis=0)
    means = [centred[clusters == number] for number in np.unique(clusters)]
    inside = sum(len(one) * (one.mean(axis=0) ** 2).sum() for one in means)
    return float(inside / (centred**2).sum())


def against_chance(
    labels: np.ndarray, clusters: np.ndarray, generator: np.random.Generator
) -> tuple[float, float, float]:
    """The share between clusters, its mean for shuffled clusters, and how many of those reach it."""
    share = between(labels, clusters)
    random = np.array([between(labels, generator.permutation(clusters)) for _ in range(1000)])
    return share, float(random.mean()), float((random >= share).mean())


if __name__ == "__main__":
    main()
