"""What an experiment would send from a site, and whether the site's policy allows each part of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from fedstill.data.bundle import Bundle
from fedstill.deploy.answer_limits import epsilon_spent
from fedstill.deploy.answer_log import AnswerLog, Used
from fedstill.deploy.demands import PrivacyDemand, Terms
from fedstill.deploy.deployment_folder import SiteFolder
from fedstill.deploy.deployment_plan import server_plan
from fedstill.deploy.policy import SitePolicy, rule
from fedstill.deploy.secure_keys import SiteKeyring
from fedstill.deploy.site_registry import SiteFacts, experiment_digest, for_sites
from fedstill.deploy.site_session import Agreement, SiteSession
from fedstill.runtime.experiment import Experiment

_NOTHING = Used(0, 0, (), ())


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
    spent: float | None  # the same of what earlier runs sent with noise; None: nothing
    by_record: bool  # whether these are of one record, and not of all data of this site

    @property
    def takes_part(self) -> bool:
        return not self.reasons

    @property
    def without_noise(self) -> int:
        """How many models or outputs earlier runs sent without noise, for which there is no epsilon."""
        return sum(not one for one in (self.used.steps if self.by_record else self.used.noise))

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
            "requests": self.manifest["requests"],
            "terms": asdict(self.terms),
            "used": {
                "rounds": self.used.rounds,
                "answers": self.used.answers,
                "epsilon_server": self.spent,
                "without_noise": self.without_noise,
            },
            "epsilon_server": self.epsilon,
            "epsilon_of": "record" if self.by_record else "client",
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
        keyring = SiteKeyring(folder.path, folder.site, "")  # which is looked at, and makes no secrets
        session = SiteSession(agreement, bundle, Path(states), data_root, proxies, keyring=keyring)
        manifest = session.rehearsed()
    used = AnswerLog(folder.path / "answers").used
    digest = experiment_digest(plan.experiment)
    answers = plan.rounds * len({line["exchange"] for line in manifest["leaves"]} & set(session.exchanges))
    reasons = [*policy.reasons(manifest, digest, session.terms), *_budget(policy, used, session.terms, answers)]
    terms = session.terms
    demand = policy.privacy or PrivacyDemand(level="record" if terms.steps else "client")
    by_record = demand.level == "record"
    noise = terms.steps if by_record else terms.noise
    epsilon = None if noise is None else epsilon_spent(demand, _NOTHING, terms, plan.rounds)
    noisy = replace(used, noise=tuple(one for one in used.noise if one), steps=tuple(one for one in used.steps if one))
    before = epsilon_spent(demand, noisy, terms, 0) if (noisy.steps if by_record else noisy.noise) else None
    if demand.epsilon is not None and noise is not None:
        spent = epsilon_spent(demand, used, terms, plan.rounds)
        if spent > demand.epsilon:
            after = f", after {len(used.noise)} replies in earlier runs," if used.noise else ""
            reasons.append(
                f"its policy allows an epsilon of {demand.epsilon:g} against the server, and with this run{after} it is"
                f" {spent:.3g}"
            )
    decisions = [_decision(policy, line) for line in manifest["leaves"]]
    return PolicyVerdict(digest, manifest, decisions, terms, used, reasons, epsilon, before, by_record)


def _budget(policy: SitePolicy, used: Used, terms: Terms, answers: int) -> list[str]:
    """Why the rounds and replies that are left do not suffice for a whole run."""
    needs = (("rounds", policy.rounds, used.rounds, terms.rounds), ("replies", policy.answers, used.answers, answers))
    return [
        f"its policy allows {most} {what} over all runs, {before} were answered, and this run has up to {needed}"
        for what, most, before, needed in needs
        if most is not None and before + needed > most
    ]


def _decision(policy: SitePolicy, line: Mapping[str, Any]) -> str:
    if policy.allows(line):
        return rule(line)
    return "left out" if policy.withheld([line]) else "refused"
