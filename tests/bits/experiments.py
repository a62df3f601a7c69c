"""Small experiments by name, as plain data: what is given to `fedstill.run`, `fedstill.study` and the command line.

An experiment is a mapping with `do`, which says what is done (see `runner.py`), and what that needs:

    run      `settings`; `engine` and `workers` where it is not in-process; `stop_after`: interrupt it after so many
             rounds, then go on; `needs`: experiments whose runs or files the settings name as "@NAME"
    study    `recipe`; `workers`, `executor`
    query, probe, pretrain, detect, predict, egress, audit, rooms, deploy   see `runner.py`

`same_as` names an experiment that must have the same digests (other engines, interruptions), all of them or those in
`same_in`. `starts_processes` marks what takes longer because it starts processes. Data sets are built in, or files that
`files.py` writes.
"""

from __future__ import annotations

from typing import Any

Experiment = dict[str, Any]

TRAINING = {"epochs": 1, "batch": 32}
SMALL: dict[str, Any] = {
    "data": "npz:digits.npz",
    "model": "cnn-bn",
    "clients": 5,
    "rounds": 3,  # so that whatever is remembered of earlier rounds shows
    "seed": 11,
    "partition": {"name": "dirichlet", "alpha": 0.5, "min_samples": 8},
    "participation": {"name": "random", "number": 4},
    "dropout": 0.2,
    "validation": 0.1,
    "training": {**TRAINING, "keep_optimiser": True},
}
CLOUDS: dict[str, Any] = {
    "data": "npz:clouds.npz",
    "clients": 2,
    "rounds": 2,
    "seed": 3,
    "training": {"epochs": 1, "batch": 8, "optimiser": "adam", "rate": 0.002},
}
SCENES: dict[str, Any] = {
    "data": "folder:scenes",
    "model": "small-detr3d-lite",
    "clients": 2,
    "rounds": 2,
    "seed": 5,
    "evaluate_every": 2,
    "training": {"epochs": 1, "batch": 4},
}
STEPS = {"samples": 40, "steps": 3, "batch": 16}
POOL = {"patches": {"count": 60}, "selection": {"kmeans": 5, "prune": 0.25}}
TRANSFER = {"transfer_epochs": 1, "head_epochs": 1, "patience": 1}
QUERIES = {"queries": {"classes": "multi", "under": 20}, "rounds": 2}
MIXED = {"model": None, "models": {"cnn-bn": 3, "mlp": 2}}
TIERS = {"tiers": {"low": {"charge": 0.02}, "high": {}}, "wifi_share": 0.5, "recharge": 0.5}
CLUSTERS = {"number": 2, "noise": 0.01, "every": 2}


def run(
    method: Any, settings: dict[str, Any] | None = None, base: dict[str, Any] | None = None, **how: Any
) -> Experiment:
    return {"do": "run", "settings": {**(SMALL if base is None else base), "method": method, **(settings or {})}, **how}


def distilled(objective: Any, labels: str = "use", *teachers: str, **settings: Any) -> Experiment:
    """A student of runs that other experiments made."""
    names = teachers or ("teacher",)
    given = {
        "data": "npz:digits.npz",
        "model": "cnn",
        "method": {"name": "distill", "labels": labels},
        "objective": objective,
        "teachers": [{"run": f"@{name}"} for name in names],
        "rounds": 2,
        "seed": 11,
        "training": TRAINING,
        **settings,
    }
    return {"do": "run", "settings": given, "needs": list(names)}


METHODS: dict[str, Experiment] = {
    "fedavg": run("fedavg"),
    "fedavg, built-in digits": run("fedavg", {"rounds": 1}, {"model": "mlp", "clients": 3, "seed": 7}),
    "fedavg, buffers recalibrated": run({"name": "fedavg", "buffers": "recalibrate"}),
    "fedavg, buffers recalibrated by layer": run(
        {"name": "fedavg", "buffers": "recalibrate", "recalibration": "layer-by-layer"}
    ),
    "fedavg, buffers as parameters": run({"name": "fedavg", "buffers": "as-parameters"}),
    "fedavg, evaluated on site": run("fedavg", {"evaluation": "on-site"}),
    "fedavg, adamw with a schedule": run(
        "fedavg",
        {"training": {**TRAINING, "optimiser": "adamw", "schedule": "cosine", "warmup": 1, "clip": 1.0}},
    ),
    "fedprox": run("fedprox"),
    "scaffold": run("scaffold"),
    "scaffold of two clients, evaluated on site": run(
        "scaffold",
        {"evaluation": "on-site", "clients": 2, "rounds": 2, "seed": 5, "training": TRAINING},
        {"data": "npz:digits.npz", "model": "cnn-bn"},
    ),
    "scaffold, gradients": run({"name": "scaffold", "correction": "gradient"}),
    "fednova": run("fednova", {"training": TRAINING}),
    "feddyn": run("feddyn"),
    "moon": run("moon"),
    "ditto": run("ditto"),
    "fedbn": run("fedbn"),
    "fedbn, proxy": run({"name": "fedbn", "proxy": "average"}),
    "fedmedian": run("fedmedian"),
    "fedavgm": run("fedavgm"),
    "fedavgm, buffers as parameters": run({"name": "fedavgm", "buffers": "as-parameters"}),
    "fedadam": run("fedadam"),
    "fedyogi": run("fedyogi"),
    "fedadagrad": run("fedadagrad"),
    "trimmed-mean": run("trimmed-mean", {"participation": "everyone"}),
    "krum": run("krum", {"participation": "everyone", "dropout": "none"}),
    "multi-krum": run("multi-krum", {"participation": "everyone", "dropout": "none"}),
    "clipped-mean": run("clipped-mean"),
    "feddf": run({"name": "feddf", "proxy": "digits", **STEPS, "initialise": 0.5}),
    "feddf, two architectures": run({"name": "feddf", "proxy": "digits", **STEPS, "mu": 0.1}, MIXED),
    "feddf, logits both ways": run(
        {"name": "feddf", "proxy": "digits", **STEPS, "initialise": 0.1, "downlink": "logits"}
    ),
    "feddf, growing selection": run(
        {"name": "feddf", "proxy": "digits", **STEPS, "schedule": "growing", "selection": {"kmeans": 5, "prune": 0.25}}
    ),
    "single-image": run({"name": "single-image", "image": "noise:64x64", **POOL, **STEPS}),
    "single-image, a photograph": run({"name": "single-image", "image": "china", **POOL, **STEPS}, {"rounds": 1}),
    "single-image, a cloud": run(
        {"name": "single-image", "image": "npz:clouds.npz:0", **POOL, **STEPS},
        {"model": "pointnet-tiny", "points": 48, "rounds": 1},
        CLOUDS,
    ),
    "fedmd": run({"name": "fedmd", "proxy": "digits", **STEPS}, MIXED),
    "fedgkt": run({"name": "fedgkt", "precision": "half"}, {"model": "cnn-bn"}),
    "fedgkt, split-cnn-lite": run("fedgkt", {"model": "split-cnn-lite"}),
    "qkt": run({"name": "qkt", **TRANSFER, "frozen": 0.1}, QUERIES),
    "qkt-light, by a volunteer": run({"name": "qkt-light", **TRANSFER, "first_phase": "volunteer"}, QUERIES),
    "qkt-light, by the server": run(
        {"name": "qkt-light", **TRANSFER, "first_phase": "server", "proxy": "digits[:10%]"}, QUERIES
    ),
    "naive-kd": run({"name": "naive-kd", **TRANSFER}, {**QUERIES, **MIXED}),
    "ensemble": run("ensemble", {**QUERIES, **MIXED}),
    "clue": run({"name": "clue", "patience": 1, "significant": 0.3}, QUERIES),
    "pfnm": run({"name": "pfnm", "hidden": 12, "sweeps": 1}, QUERIES),
    "fine-tuned": run({"name": "fine-tuned", "buffers": "recalibrate"}),
    "centralised": run("centralised", {"participation": "everyone", "dropout": "none"}),
    "local-only": run("local-only"),
    "fed3d, everything shared": run({"name": "fed3d", "share": "all"}),
}

AROUND: dict[str, Experiment] = {
    "batteries, clusters, bursts and stand-ins": run(
        {"name": "fedgkt", "precision": "half"},
        {
            "fleet": TIERS,
            "clusters": CLUSTERS,
            "participation": {"name": "clustered", "number": 3, "history": True},
            "dropout": {"name": "bursty", "rate": 0.3, "length": 2, "when": "during", "replace": True},
        },
    ),
    "battery-aware participation": run(
        "fedavg", {"fleet": TIERS, "participation": {"name": "battery-aware", "number": 3}}
    ),
    "label-balanced participation": run("fedavg", {"participation": {"name": "label-balanced", "number": 3}}),
    "power of choice, mimic": run(
        "fedprox",
        {"participation": {"name": "power-of-choice", "number": 3, "losses": "ask"}, "cure": "mimic"},
    ),
    "friends stand for the lost": run(
        "scaffold", {"cure": "friends", "dropout": {"name": "independent", "rate": 0.4, "of_cohort": True}}
    ),
    "losses replayed from a file": run(
        "fedavg", {"dropout": {"name": "trace", "file": "losses.csv", "when": "during"}}
    ),
    "pathological shards, norm limit": run(
        "fedavg",
        {"partition": {"name": "pathological", "classes_per_client": 3}, "norm_limit": 1.5, "min_replies": 2},
    ),
    "label-skewed shards": run("fedavg", {"partition": "label-skew", "dropout": "none"}),
    "attack: sign-flip on multi-krum": run(
        "multi-krum", {"participation": "everyone", "dropout": "none", "attack": {"name": "sign-flip", "clients": [1]}}
    ),
    "attack: sign-flip": run("fedavg", {"participation": "everyone", "attack": {"name": "sign-flip", "clients": [1]}}),
    "attack: noise on trimmed-mean": run(
        "trimmed-mean", {"participation": "everyone", "attack": {"name": "noise", "clients": [1]}}
    ),
    "attack: label-flip": run("fedavg", {"attack": {"name": "label-flip", "share": 0.4}}),
    "attack: nan": run("fedavg", {"participation": "everyone", "attack": {"name": "nan", "clients": [2]}}),
    "attack: huge on clipped-mean": run(
        "clipped-mean", {"participation": "everyone", "dropout": "none", "attack": {"name": "huge", "clients": [0, 1]}}
    ),
    "privacy, noise at the server": run({"name": "fedavg", "weights": "uniform"}, {"privacy": "client-level"}),
    "privacy, noise at the clients": run(
        {"name": "fedavg", "weights": "uniform"},
        {"privacy": {"name": "client-level", "where": "client", "noise": 0.5}},
    ),
    "privacy, noise in masked sums": run(
        {"name": "fedavg", "weights": "uniform"}, {"privacy": {"name": "distributed", "noise": 0.5}, "secure": True}
    ),
    "privacy, record by record": run(
        "fedavg", {"privacy": {"name": "record-level", "delta": 0.001}, "model": "cnn-bn:norm=group"}
    ),
}

MODELS: dict[str, Experiment] = {
    "mlp, cnn and resnet8 through feddf": run(
        {"name": "feddf", "proxy": "digits", **STEPS},
        {
            "model": None,
            "models": {"mlp": 1, "cnn": 1, "resnet8": 1},
            "clients": 3,
            "rounds": 1,
            "participation": "everyone",
        },
    ),
    "wrn16-1": run("fedavg", {"model": "wrn16-1", "clients": 2, "rounds": 1, "participation": "everyone"}),
    "pointnet": run("fedavg", {"model": "pointnet", "rounds": 1}, CLOUDS),
    "pointnet-tiny, augmented": run(
        "fedprox",
        {
            "model": "pointnet-tiny",
            "points": 48,
            "augmentation": {"name": "points", "dropout": 0.5, "scale_low": 0.9, "scale_high": 1.1, "shift": 0.05},
        },
        CLOUDS,
    ),
    "pointnet-tiny, built-in heads": run(
        "fedavg", {"data": "heads", "model": "pointnet-tiny", "points": 48, "rounds": 1}, CLOUDS
    ),
    "pointnet2-lite": run("fedavg", {"model": "pointnet2-lite", "rounds": 1}, CLOUDS),
    "small-pointnet2-lite": run(
        {"name": "fedprox", "buffers": "recalibrate"}, {"model": "small-pointnet2-lite"}, CLOUDS
    ),
    "dgcnn": run("fedavg", {"model": "dgcnn", "rounds": 1}, CLOUDS),
    "segmentation": run(
        "fedavg",
        {
            "data": "head-parts",
            "model": "pointnet2-segmentation-lite",
            "points": 64,
            "rounds": 1,
            "training": {"epochs": 1, "batch": 32},
        },
        CLOUDS,
    ),
    "rooms": {"do": "rooms", "scenes": 6, "points": 256},
    "pre-training": {
        "do": "pretrain",
        "data": "folder:scenes",
        "settings": {"model": "small-detr3d-lite", "epochs": 2, "points": 256, "batch": 4},
    },
    "detector, fed3d from a pre-trained encoder": run(
        "fed3d", {"initial": {"file": "@pre-training"}}, SCENES, needs=["pre-training"]
    ),
    "detector, fedavg by class subsets": run("fedavg", {"partition": "class-subset", "rounds": 1}, SCENES),
    "detector, centralised": run("centralised", {"model": "detr3d-lite", "rounds": 1}, SCENES),
    "detector, distilled": {
        "do": "run",
        "settings": {
            "data": "folder:scenes",
            "model": "small-detr3d-lite",
            "method": "distill",
            "objective": "detector",
            "teachers": [{"run": "@detector, centralised"}],
            "rounds": 1,
            "seed": 5,
            "training": {"epochs": 1, "batch": 4},
        },
        "needs": ["detector, centralised"],
    },
    "detect": {
        "do": "detect",
        "of": "detector, fed3d from a pre-trained encoder",
        "files": ["scenes/test"],
        "needs": ["detector, fed3d from a pre-trained encoder"],
    },
}

OBJECTIVES = (
    "vanilla",
    "logit-mse",
    "cosine",
    "feature",
    "attention",
    "sp",
    "rkd",
    "crd",
    "dkd",
)
DISTILLATION: dict[str, Experiment] = {
    "teacher": run("centralised", {"participation": "everyone", "dropout": "none", "seed": 7}),
    **{f"distilled, {name}": distilled(name) for name in OBJECTIVES},
    "distilled, self in three generations": distilled({"name": "self", "generations": 3}, rounds=1),
    "distilled, crd+kl": distilled("crd+kl"),
    "distilled, crd+kl without labels": distilled("crd+kl", "withhold"),
    "distilled, basic": distilled("basic"),
    "distilled, labels only": {**distilled("labels-only", teachers=[]), "needs": []},
    "distilled, several teachers": distilled("multi-teacher", "use", "teacher", "fedavg"),
    "distilled, vanilla without cross-entropy": distilled("vanilla", "no-ce"),
    "distilled, dkd with labels withheld": distilled("dkd", "withhold"),
    "distilled, feature on a share of a proxy": distilled(
        "feature", method={"name": "distill", "labels": "use", "proxy": "digits", "share": 0.15}
    ),
    "distilled, best model of a run, same architecture": distilled(
        "vanilla",
        model="cnn-bn",
        method={"name": "distill", "same_model": True},
        teachers=[{"run": "@teacher", "which": "best"}],
    ),
}

STUDY: dict[str, Any] = {
    "about": "Two teachers and their students, which learn in shared passes over the data.",
    "experiment": {"data": "npz:digits.npz", "model": "cnn-bn", "clients": 2, "rounds": 1, "training": TRAINING},
    "grid": {"method": ["fedavg", "centralised"], "seed": [7]},
    "students": {
        "experiment": {"model": "cnn", "rounds": 1, "training": TRAINING},
        "grid": {"objective": ["labels-only", *OBJECTIVES, "self", "crd+kl"], "labels": ["use", "no-ce", "withhold"]},
    },
}
FEW: dict[str, Any] = {
    "about": "Three methods, two seeds.",
    "experiment": {**STUDY["experiment"], "model": "mlp"},
    "grid": {"method": ["fedavg", "fedprox", "local-only"], "seed": [7, 42]},
}
PEERS: dict[str, Any] = {
    "model": "mlp",
    "clients": 4,
    "rounds": 2,
    "partition": {"name": "pathological", "classes_per_client": 3},
    "participation": "everyone",
    "dropout": "none",
}
OTHER: dict[str, Experiment] = {
    "study of teachers and students": {"do": "study", "recipe": STUDY},
    "audit of that study": {
        "do": "audit",
        "of": "study of teachers and students",
        "needs": ["study of teachers and students"],
    },
    "study of three methods": {"do": "study", "recipe": FEW},
    "peers that learnt alone": run("local-only", PEERS),
    "query": {
        "do": "query",
        "of": "peers that learnt alone",
        "words": ["--client", "0", "--class", "7", "--set", "threshold=0"],
        "settings": {"transfer_epochs": 2, "head_epochs": 1},
        "needs": ["peers that learnt alone"],
    },
    "query, qkt-light": {
        "do": "query",
        "of": "peers that learnt alone",
        "words": ["--client", "1", "--class", "2", "--class", "5", "--method", "qkt-light", "--set", "threshold=0"],
        "settings": {"transfer_epochs": 1, "head_epochs": 1},
        "needs": ["peers that learnt alone"],
    },
    "query, what all models know": {
        "do": "query",
        "of": "peers that learnt alone",
        "words": ["--probe"],
        "settings": {},
        "needs": ["peers that learnt alone"],
    },
    "predict": {"do": "predict", "of": "fedavg", "files": ["first.npy", "second.npy"], "needs": ["fedavg"]},
    "egress of fedavg": {"do": "egress", "settings": {**SMALL, "method": "fedavg"}},
    "egress of scaffold, on site": {
        "do": "egress",
        "settings": {**SMALL, "method": "scaffold", "evaluation": "on-site", "clusters": CLUSTERS},
    },
}


def again(name: str, **how: Any) -> Experiment:
    """The same experiment in another way, which must not show in any digest."""
    known = {**METHODS, **AROUND, **MODELS, **DISTILLATION, **OTHER}
    return {**known[name], **how, "same_as": name}


AGAIN: dict[str, Experiment] = {
    "scaffold on the wire": again("scaffold", engine="wire"),
    "ditto on the wire": again("ditto", engine="wire"),
    "fedgkt with batteries on the wire": again("batteries, clusters, bursts and stand-ins", engine="wire"),
    "fedavg, interrupted": again("fedavg", stop_after=1),
    "fedadam, interrupted": again("fedadam", stop_after=2),
    "ditto, interrupted": again("ditto", stop_after=1),
    "fedgkt with batteries, interrupted": again("batteries, clusters, bursts and stand-ins", stop_after=2),
    "distilled, self, interrupted": again("distilled, self in three generations", stop_after=2),
    "scaffold in two processes": again("scaffold", engine="processes", workers=2, starts_processes=True),
    "qkt in two processes": again("qkt", engine="processes", workers=2, starts_processes=True),
    "dgcnn in two processes": again("dgcnn", engine="processes", workers=2, starts_processes=True),
    "scaffold on flower-ray": again("scaffold", engine="flower-ray", workers=2, starts_processes=True),
    "study of three methods by two workers": again("study of three methods", workers=2, starts_processes=True),
    "study of three methods on Ray": again("study of three methods", workers=2, executor="ray", starts_processes=True),
    "deployment to two sites": {
        "do": "deploy",
        "words": ["scaffold", "--data", "npz:digits.npz", "--model", "cnn-bn", "--rounds", "2", "--seed", "5"],
        "settings": {"training.epochs": 1, "training.batch": 32},
        "same_as": "scaffold of two clients, evaluated on site",
        "same_in": ["sha256", "models", "journal"],  # its identity is made of the sites' data
        "starts_processes": True,
    },
}

EXPERIMENTS: dict[str, Experiment] = {**METHODS, **AROUND, **MODELS, **DISTILLATION, **OTHER, **AGAIN}

# Those that `make test` compares with the record.
REPRESENTATIVE = (
    "fedavg",
    "fedavg, built-in digits",
    "fedavg, buffers recalibrated",
    "fedadam",
    "scaffold",
    "ditto",
    "feddf, two architectures",
    "single-image",
    "qkt",
    "batteries, clusters, bursts and stand-ins",
    "privacy, noise at the clients",
    "distilled, feature",
    "pointnet-tiny, augmented",
    "query",
    "study of three methods",
)
