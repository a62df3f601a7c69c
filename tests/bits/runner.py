"""Carries out the experiments, each once, in the folder it is given, with public functions and the command line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import chdir
from copy import deepcopy
from pathlib import Path
from typing import Any

import fedstill

from . import access
from .digest import Details, numbers, run_details, shortened
from .experiments import EXPERIMENTS, Experiment
from .files import write_files

DEPLOYED = 240  # seconds that a deployment may take


class Runner:
    """Experiments that were carried out so far: what they left behind, and what is known of it.

    All paths in experiments are relative, since a data set's path is part of a run's identity.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder.resolve()
        self.folder.mkdir(parents=True, exist_ok=True)
        self.left: dict[str, Path] = {}  # by experiment, the run's folder or the file that others can name
        self.known: dict[str, Details] = {}
        write_files(self.folder)

    def digests(self, name: str) -> dict[str, str]:
        return shortened(self.details(name))

    def details(self, name: str) -> Details:
        if name not in self.known:
            self.known[name] = self.carry_out(name, EXPERIMENTS[name])
        return self.known[name]

    def carry_out(self, name: str, experiment: Experiment) -> Details:
        """Also for an experiment that is not in the list."""
        for needed in experiment.get("needs", ()):
            self.details(needed)
        out = Path("runs") / f"{len(list(self.folder.glob('runs/*'))):03}"
        with chdir(self.folder):
            out.mkdir(parents=True)
            details: Details = getattr(self, f"_{experiment['do']}")(name, experiment, out)
        return details

    def _run(self, name: str, experiment: Experiment, out: Path) -> Details:
        settings = self._resolved(experiment["settings"])
        how = {key: experiment[key] for key in ("engine", "workers") if key in experiment}
        if "stop_after" in experiment:
            try:
                fedstill.run(settings, out=out, observers=[access.InterruptAfter(experiment["stop_after"])], **how)
            except KeyboardInterrupt:
                pass
            else:
                raise AssertionError("the run was not interrupted")
        run = fedstill.run(settings, out=out, **how)
        self.left[name] = run.path
        return run_details(run)

    def _study(self, name: str, experiment: Experiment, out: Path) -> Details:
        how = {key: experiment[key] for key in ("executor",) if key in experiment}
        results = fedstill.study(experiment["recipe"], out=out, workers=experiment.get("workers", 1), **how)
        if wrong := access.failed(results):
            raise AssertionError(f"a study's runs failed: {wrong}")
        self.left[name] = out / "results.json"
        access.save_results(results, self.left[name])
        runs = [fedstill.Run(path.parent) for path in sorted(out.glob(f"*/{access.CONFIGURATION}"))]
        every = [shortened(run_details(run)) for run in runs]
        fields = dict.fromkeys(field for each in every for field in each)
        together: Details = {field: sorted(each.get(field, "") for each in every) for field in fields}
        return {**together, "results": numbers(access.former_results(results))}

    def _audit(self, name: str, experiment: Experiment, out: Path) -> Details:
        return {"outcome": numbers(fedstill.audit(str(self.left[experiment["of"]])))}

    def _query(self, name: str, experiment: Experiment, out: Path) -> Details:
        settings = [word for key, value in experiment["settings"].items() for word in ("--set", f"{key}={value}")]
        words = [str(self.left[experiment["of"]]), *experiment["words"], *settings, "--out", str(out), "--json"]
        told = json.loads(access.typed("query", *words))
        kept = run_details(fedstill.Run(told["run"])) if "run" in told else {}
        return {**kept, "answer": numbers(told)}

    def _pretrain(self, name: str, experiment: Experiment, out: Path) -> Details:
        made = fedstill.pretrain(experiment["data"], out / "encoder.safetensors", **experiment["settings"])
        self.left[name] = made.file
        record = access.pretraining_record(made)
        return {
            "sha256": str(record["sha256"]),
            "identity": access.pretraining_identity(made),
            "outcome": numbers(record),
        }

    def _detect(self, name: str, experiment: Experiment, out: Path) -> Details:
        return {"outcome": numbers(fedstill.detect(self.left[experiment["of"]], experiment["files"]))}

    def _predict(self, name: str, experiment: Experiment, out: Path) -> Details:
        found = fedstill.predict(self.left[experiment["of"]], experiment["files"])
        return {"outcome": numbers([{"read": one.inputs, "said": one.probabilities} for one in found])}

    def _egress(self, name: str, experiment: Experiment, out: Path) -> Details:
        leaves = fedstill.egress(experiment["settings"])
        # What a server sends is counted since after the recording.
        return {"outcome": numbers({key: value for key, value in leaves.items() if key != "requests"})}

    def _rooms(self, name: str, experiment: Experiment, out: Path) -> Details:
        return {"outcome": numbers(access.rooms(experiment["scenes"], experiment["points"]))}

    def _deploy(self, name: str, experiment: Experiment, out: Path) -> Details:
        """A server and two sites in processes of their own."""
        self._command("deploy", "init", str(out / "site"), "--sites", "2")
        settings = [word for key, value in experiment["settings"].items() for word in ("--set", f"{key}={value}")]
        words = [
            "deploy",
            "try",
            str(out / "site"),
            *experiment["words"],
            *settings,
            "--no-compare",
            "--quiet",
            "--json",
        ]
        run = fedstill.Run(json.loads(self._command(*words))["run"])
        self.left[name] = run.path
        return run_details(run)

    def _command(self, *words: str) -> str:
        path = os.pathsep.join(entry for entry in sys.path if entry)  # this process's package, not the installed one
        done = subprocess.run(
            [sys.executable, "-m", "fedstill", *words],
            env={**os.environ, "PYTHONPATH": path},
            capture_output=True,
            text=True,
            timeout=DEPLOYED,
        )
        if done.returncode:
            raise RuntimeError(f"fedstill {' '.join(words)} ended with {done.returncode}: {done.stderr[-2000:]}")
        return done.stdout

    def _resolved(self, settings: Any) -> Any:
        """Settings in which "@NAME" has become what that experiment left behind."""
        if isinstance(settings, dict):
            return {key: self._resolved(value) for key, value in settings.items()}
        if isinstance(settings, list):
            return [self._resolved(value) for value in settings]
        if isinstance(settings, str) and settings.startswith("@"):
            return str(self.left[settings[1:]])
        return deepcopy(settings)
