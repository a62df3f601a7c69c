"""What an experiment would send from a site, and what the site's policy says to each part of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from fedstill.data.bundle import Bundle
from fedstill.deploy.answer_log import AnswerLog, Used
from fedstill.deploy.deployment_folder import SiteFolder
from fedstill.deploy.deployment_plan import server_plan
from fedstill.deploy.policy import SitePolicy, Terms, rule
from fedstill.deploy.site_registry import SiteFacts, experiment_digest, for_sites
from fedstill.deploy.site_session import Agreement, SiteSession
from fedstill.methods.wrappers.privacy_accounting import replies_epsilon
from fedstill.runtime.experiment import Experiment


@dataclass(frozen=True)
class PolicyVerdict:
    """An experiment held against a policy."""

    digest: str  # of the experiment
    manifest: Mapping[str, Any]
    decisions: Sequence[str]  # for each line: the rule that allows it, or that it is withheld or refused
    terms: Terms
    used: Used  # by earlier runs
    reasons: Sequence[str]  # why the site would not take part; empty: it would
    epsilon: float | None  # against the server, after all rounds of this run alone; None: no noise at the site

    @property
    def takes_part(self) -> bool:
        return not self.reasons

    def to_dict(self) -> dict[str, Any]:
        lines = [
            {**line, "decision": decision}
            for line, decision in zip(self.manifest["leaves"], self.decisions, strict=True)
        ]
        return {
            "takes_part": self.takes_part,
            "experiment": self.digest,
            "reasons": list(self.reasons),
            "leaves": lines,
            "terms": asdict(self.terms),
            "used": {"rounds": self.used.rounds, "answers": self.used.answers},
            "epsilon_server": self.epsilon,
        }


def checked_policy(
    folder: SiteFolder,
    experiment: Experiment,
    bundle: Bundle,
    data_root: Path | None = None,
    proxies: Sequence[str] = (),
) -> PolicyVerdict:
    """Hold an experiment, planned for this site's data, against its policy; nothing leaves, and nothing is stored."""
    policy, facts = folder.policy(), SiteFacts.of(bundle)
    wanted = for_sites(experiment, folder.sites, folder.name)
    plan, question = server_plan(wanted, [facts] * folder.sites, data_root)
    told = {"experiment": plan.experiment.model_dump(mode="json"), "question": asdict(question), "client": folder.site}
    agreement = Agreement.model_validate({**told, "fingerprint": facts.fingerprint})
    with TemporaryDirectory() as states:
        session = SiteSession(agreement, bundle, Path(states), data_root, proxies)
        manifest = session.rehearsed()
    used = AnswerLog(folder.path / "answers").used
    digest = experiment_digest(plan.experiment)
    reasons = [*policy.reasons(manifest, digest, session.terms), *_budget(policy, used, session.terms)]
    noise, delta = session.terms.noise, 1e-5 if policy.privacy is None else policy.privacy.delta
    epsilon = None if noise is None else replies_epsilon([noise] * plan.rounds, delta)
    limit = None if policy.privacy is None else policy.privacy.epsilon
    if limit is not None and epsilon is not None and epsilon > limit:
        reasons.append(f"its policy allows an epsilon of {limit:g} against the server, and this run has {epsilon:.3g}")
    decisions = [_decision(policy, line) for line in manifest["leaves"]]
    return PolicyVerdict(digest, manifest, decisions, session.terms, used, reasons, epsilon)


def _budget(policy: SitePolicy, used: Used, terms: Terms) -> list[str]:
    if policy.rounds is None or used.rounds + terms.rounds <= policy.rounds:
        return []
    return [
        f"its policy allows {policy.rounds} rounds over all runs, {used.rounds} were answered, and this run has"
        f" {terms.rounds}"
    ]


def _decision(policy: SitePolicy, line: Mapping[str, Any]) -> str:
    if policy.allows(line):
        return rule(line)
    return "left out" if policy.withheld([line]) else "refused"
