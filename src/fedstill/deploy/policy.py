"""The site's policy: what may leave, to whom and how often, and what an experiment must guarantee.

No server can change it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, get_args

from pydantic import Field, ValidationInfo, field_validator, model_validator

from fedstill.core.egress import Kind
from fedstill.core.errors import InputError, did_you_mean
from fedstill.core.numbers import listed
from fedstill.core.settings import Settings
from fedstill.deploy.demands import PrivacyDemand, Terms, no_switch
from fedstill.deploy.private_files import read_mapping, read_settings

KINDS: tuple[Kind, ...] = get_args(Kind)
_RECEIVERS = ("server", "peers")
_ADVICE = "write what may leave, as in `allow: [parameters, statistics, metrics]`"

EXAMPLE = """\
# What may leave this site, and to whom. An experiment that sends anything else is refused here, before it starts.
# Kinds: parameters (weights of models), statistics (counts, sums and means), metrics (how much work was done),
#        logits and features (a model's outputs for single samples: these can reveal a lot about them),
#        labels and inputs (the data itself).
# Receivers: server; or [server, peers], where the server may pass it on to other sites.
allow:
  parameters: server
  statistics: server
  metrics: server

# Take part in one experiment only: its digest, in quotes, as agreed with the others. Left empty, any experiment will do
# that keeps to this file.
experiment:

# Methods that may be used, as in [fedavg, fedprox]. Left empty, any.
methods:

# The most that this site answers, over all runs together: rounds, and replies. Each reply tells a little of the data,
# and so does a failure to reply, which counts as one.
rounds: 1000
answers: 5000

# How often a server may ask a different question for a round that was answered, because it lost another site in it.
attempts: 1

# The fewest samples behind any reply, and behind any figure of one class (counts, right answers). Left empty: any.
least_samples: 20
least_class_samples:

# The largest message from the server that is received, and the largest reply, in megabytes.
largest_request: 4096
largest_reply: 1024

# The most that a server can make this site store, over all runs: models of other sites (offers/), and megabytes of
# these and of final models (received/).
stored_models: 1000
stored_megabytes: 10240

# Noise that an experiment must add at this site, before anything leaves. Left empty, none is needed. For example
#   privacy: {noise: 0.5, clip: 1.0, epsilon: 8.0, delta: 0.00001}
# noise: least standard deviation of the noise in each reply, in units of the clip; clip: largest norm of an update;
# epsilon: most that all models sent by this site together may reveal to the server, for this delta. What the site sends
# of an evaluation (sums over its test data) gets no noise and is not counted: least_samples bounds that. With secure
# aggregation (below) noise can be in the sum instead, a share of it from each site: `colluding: 1` accepts that if the
# noise is enough when one other site tells the server its share.
# Or it can be in each step of training (an experiment's privacy=record-level), which hides one record, from everybody,
# and not the whole of this site's data:
#   privacy: {level: record, noise: 1.0, clip: 1.0, epsilon: 8.0, delta: 0.00001}
# noise: on the sum of a step's gradients, in units of the clip; clip: largest norm of the gradient of one record.
privacy:

# Whether this site takes part only where the server sees nothing but sums over sites (an experiment's `secure: true`),
# and the fewest sites that must be in such a sum (an experiment's `secure.least`, or its threshold): with 3, two others
# share what is left when one subtracts its own.
secure_aggregation: false
least_sites:
"""


class SitePolicy(Settings):
    """What may leave and to whom, the budget of this site, and what an experiment must guarantee.

    >>> policy = SitePolicy(allow={"parameters": "server", "metrics": ["server", "peers"]})
    >>> leaves = [{"name": "parameters/*", "kind": "parameters"}, {"name": "logits", "kind": "logits", "why": "..."}]
    >>> [line["name"] for line in policy.forbidden(leaves)]
    ['logits']
    >>> shared = [{"name": "parameters/*", "kind": "parameters", "to": "peers"}]
    >>> len(policy.forbidden(shared)), len(SitePolicy(allow=["parameters"], peers=["parameters"]).forbidden(shared))
    (1, 0)
    """

    allow: frozenset[Kind] = Field(description="kinds of content that may leave this site, each with its receivers")
    peers: frozenset[Kind] = Field(
        frozenset(), description="kinds that the server may pass on to other sites; none unless named"
    )
    experiment: str | None = Field(
        None, min_length=1, description="digest of the only experiment to take part in; unset: any"
    )
    methods: tuple[str, ...] | None = Field(None, description="methods that may be used; unset: any")
    rounds: int | None = Field(
        None, ge=0, description="most rounds that are answered, over all runs; unset: any number"
    )
    answers: int | None = Field(None, ge=0, description="most replies, over all runs; unset: any number")
    attempts: int = Field(1, ge=0, le=100, description="how often another question for an answered round is accepted")
    least_samples: int | None = Field(None, ge=1, description="fewest samples behind any reply; unset: any number")
    least_class_samples: int | None = Field(
        None, ge=1, description="fewest samples behind a figure of one class; unset: any number"
    )
    largest_request: float | None = Field(
        None, gt=0, le=4096, description="largest message of the server in megabytes; unset: 4096"
    )
    largest_reply: float | None = Field(None, gt=0, description="largest reply in megabytes; unset: any size")
    stored_models: int | None = Field(
        None, ge=0, description="most models of other sites that are stored here; unset: any number"
    )
    stored_megabytes: float | None = Field(
        None, ge=0, description="most megabytes of models that a server sent here; unset: any size"
    )
    privacy: PrivacyDemand | None = Field(
        None, description="noise that an experiment must add at this site; unset: none"
    )
    secure_aggregation: bool = Field(False, description="take part only where the server sees nothing but sums")
    least_sites: int | None = Field(
        None, ge=2, description="fewest sites in a sum, which requires secure aggregation; unset: any number"
    )

    @model_validator(mode="before")
    @classmethod
    def _receivers(cls, given: Any) -> Any:
        """Kinds with their receivers, as two lists; a list of kinds is what may go to the server."""
        if not isinstance(given, dict) or not isinstance(given.get("allow"), dict):
            return given
        told = {kind: [to] if isinstance(to, str) else to for kind, to in given["allow"].items()}
        for kind, receivers in told.items():
            if not isinstance(receivers, list) or not receivers or not set(receivers) <= set(_RECEIVERS):
                raise ValueError(f"allow.{kind}: write server, or [server, peers]")
            if "server" not in receivers:
                raise ValueError(f"allow.{kind}: what peers are given passes through the server: write [server, peers]")
        shared = [*(given.get("peers") or ()), *(kind for kind, receivers in told.items() if "peers" in receivers)]
        return {**given, "allow": list(told), "peers": shared}

    @field_validator("allow", "peers", mode="before")
    @classmethod
    def _known(cls, value: Any, field: ValidationInfo) -> Any:
        if value is None and field.field_name == "peers":
            return frozenset()
        if not isinstance(value, list | tuple | set | frozenset):
            raise ValueError("write a list of kinds, as in [parameters, statistics, metrics]")
        for kind in value:
            if kind not in KINDS:
                raise ValueError(f"unknown kind {kind!r}: {did_you_mean(str(kind), KINDS)}")
        return frozenset(value)

    @field_validator("*", mode="before")
    @classmethod
    def _no_switches(cls, value: Any, field: ValidationInfo) -> Any:
        return value if field.field_name == "secure_aggregation" else no_switch(value)

    @field_validator("experiment", mode="before")
    @classmethod
    def _quoted(cls, value: Any) -> Any:
        if value is not None and not isinstance(value, str):
            raise ValueError("write the digest in quotes")  # YAML takes digits alone for a number
        return value

    @field_validator("methods", mode="before")
    @classmethod
    def _several(cls, value: Any) -> Any:
        return (value,) if isinstance(value, str) else value

    def forbidden(self, leaves: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
        """The lines of a manifest that this policy does not allow; unknown kinds are never allowed."""
        return [line for line in leaves if not self.allows(line)]

    def allows(self, line: Mapping[str, Any]) -> bool:
        """Whether what a line declares may leave, to its receiver."""
        kind = line.get("kind")
        return kind in self.allow and (line.get("to") != "peers" or kind in self.peers)

    def withheld(self, leaves: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
        """Forbidden lines without which the site takes part: their tensors are taken out of its replies.

        They are optional, or for peers and empty in the rehearsal, such as BatchNorm's statistics without BatchNorm.
        """
        return [line for line in self.forbidden(leaves) if line.get("optional") is True or self._is_empty(line)]

    def _is_empty(self, line: Mapping[str, Any]) -> bool:
        return line.get("kind") in self.allow and line.get("to") == "peers" and line.get("tensors") == 0

    def refusal(
        self,
        manifest: Mapping[str, Any],
        site: int | None = None,
        digest: str | None = None,
        terms: Terms | None = None,
    ) -> str | None:
        """Why this site does not take part, in a sentence for both ends; None where it does.

        `digest` is that of the experiment; a site that agreed to one experiment takes part in no other, nor in one
        without a digest. Without `terms`, only the lines are looked at.
        """
        reasons = self.reasons(manifest, digest, terms)
        who = "this site" if site is None else f"site {site}"
        return f"{who} does not take part: {reasons[0]}" if reasons else None

    def reasons(self, manifest: Mapping[str, Any], digest: str | None, terms: Terms | None) -> list[str]:
        """Everything in this policy that refuses the experiment."""
        found = []
        if self.experiment is not None and self.experiment != digest:
            asked = f"this is {digest}" if digest else "this one came without a digest"
            found.append(f"its policy agrees to experiment {self.experiment} only, and {asked}")
        if (lines := self._lines(manifest)) is not None:
            found.append(lines)
        found += [why for why in (self._too_large(manifest), self._too_large_request(manifest)) if why is not None]
        return found if terms is None else [*found, *self._demands(manifest, terms)]

    def _too_large(self, manifest: Mapping[str, Any]) -> str | None:
        """A reply of the rehearsed round that is larger than any that may leave."""
        sizes: Counter[str] = Counter()
        for line in manifest["leaves"]:
            if self.allows(line):
                sizes[str(line.get("exchange"))] += int(line.get("bytes", 0))
        exchange, most = max(sizes.items(), key=lambda one: one[1], default=("", 0))
        if self.largest_reply is None or most <= self.largest_reply * 2**20:
            return None
        return (
            f"its policy allows replies of {self.largest_reply:g} megabytes, and one of the exchange {exchange} has"
            f" {most / 2**20:.2g}"
        )

    def _too_large_request(self, manifest: Mapping[str, Any]) -> str | None:
        """A request of the rehearsed round that is larger than any that is received."""
        requests = manifest.get("requests") or {}  # which agreements of earlier versions do not have
        exchange, most = max(requests.items(), key=lambda one: one[1], default=("", 0))
        if self.largest_request is None or most <= self.largest_request * 2**20:
            return None
        return (
            f"its policy receives messages of up to {self.largest_request:g} megabytes, and a request of the exchange"
            f" {exchange} has {most / 2**20:.2g}"
        )

    def _lines(self, manifest: Mapping[str, Any]) -> str | None:
        withheld = self.withheld(manifest["leaves"])
        lines = [line for line in self.forbidden(manifest["leaves"]) if line not in withheld]
        if not lines:
            return None
        what = dict.fromkeys(f"{line.get('kind')} ({line.get('why', 'for no stated reason')})" for line in lines)
        if all(line.get("kind") in self.allow for line in lines):
            passed, kinds = _only(self.peers, "to be passed on"), sorted({str(line.get("kind")) for line in lines})
            return (
                f"{manifest['method']} passes {listed(list(what))} on to other sites, and its policy allows {passed};"
                f" `{kinds[0]}: [server, peers]` under `allow` would change that"
            )
        return f"{manifest['method']} sends {listed(list(what))}, and its policy allows {_only(self.allow, 'to leave')}"

    def _demands(self, manifest: Mapping[str, Any], terms: Terms) -> list[str]:
        found = []
        if self.methods is not None and terms.method not in self.methods:
            allowed = listed(list(self.methods)) if self.methods else "no method"
            found.append(f"its policy allows {allowed}, and not {terms.method}")
        if self.secure_aggregation and not terms.secure:
            found.append(
                "its policy requires secure aggregation, and this experiment shows single replies to the server: set"
                " secure=true, and no secure.reports=clear"
            )
        if self.least_sites is not None and terms.sites < self.least_sites:
            found.append(
                f"its policy requires {self.least_sites} sites in every sum, and this experiment needs {terms.sites}:"
                f" set secure.least={self.least_sites}"
            )
        if self.privacy is not None and (why := self.privacy.refusal(terms)):
            found.append(why)
        if self.least_samples is not None and terms.samples < self.least_samples:
            found.append(f"its policy requires {self.least_samples} samples behind every reply, and one has fewer")
        by_class = any(line.get("by_class") for line in manifest["leaves"] if self.allows(line))
        if self.least_class_samples is not None and by_class and terms.class_samples < self.least_class_samples:
            least = f"its policy requires {self.least_class_samples} samples behind every figure of a class"
            found.append(f"{least}, and one has fewer")  # how many is what must not leave, and the server gets this
        return found


def rule(line: Mapping[str, Any]) -> str:
    """The rule that allows what a line declares, as logs and checks name it."""
    return f"allow {line['kind']}: {line['to']}"


def _only(kinds: frozenset[Kind], what: str) -> str:
    allowed = [kind for kind in KINDS if kind in kinds]
    return f"{listed(allowed)} only" if allowed else f"nothing {what}"


def earlier_form(path: Path) -> str | None:
    """What a policy file written for an earlier version newly forbids, and what it leaves open; None: it is no such."""
    given = read_mapping(path, _ADVICE)
    if not isinstance(given.get("allow"), list):
        return None
    closed = "" if given.get("peers") else " to the server only: nothing may be passed on to other sites any more"
    unset = [name for name in ("rounds", "answers", "least_samples", "privacy") if given.get(name) is None]
    opened = f"; it sets no {listed(unset)}" if unset else ""
    return (
        f"{path.name} was written for an earlier version: what it allows may leave{closed}{opened}."
        " `fedstill deploy init` writes an example of the present form"
    )


def read_policy(path: Path) -> SitePolicy:
    """Read a site's policy file; an invalid file is an error, so that nothing is allowed by mistake."""
    if not path.exists():
        raise InputError(f"{path} is missing: without a policy nothing leaves; write `allow: [...]` into it")
    return read_settings(path, SitePolicy, _ADVICE)
