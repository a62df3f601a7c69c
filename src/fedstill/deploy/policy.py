"""The site's policy: which kinds of content may leave. No server can change it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, get_args

from pydantic import Field, ValidationInfo, field_validator

from fedstill.core.egress import Kind
from fedstill.core.errors import InputError, did_you_mean
from fedstill.core.numbers import listed
from fedstill.core.settings import Settings
from fedstill.deploy.private_files import read_settings

KINDS: tuple[Kind, ...] = get_args(Kind)

EXAMPLE = """\
# What may leave this site. An experiment that sends anything else is refused here, before it starts.
# Kinds: parameters (weights of models), statistics (counts, sums and means), metrics (how much work was done),
#        logits and features (a model's outputs for single samples: these can reveal a lot about them),
#        labels and inputs (the data itself).
allow: [parameters, statistics, metrics]

# Which of these the server may pass on to other sites: a model for their queries is parameters, its recall on the data
# here is metrics. Left empty, all that are allowed above; [] for none.
peers:

# Take part in one experiment only: its digest, in quotes, as agreed with the others. Left empty, any experiment will do
# whose kinds are allowed above.
experiment:
"""


class SitePolicy(Settings):
    """Kinds of content that may leave, and, where a site wants that, the one experiment it agreed to.

    >>> policy = SitePolicy(allow={"parameters", "metrics"})
    >>> leaves = [{"name": "parameters/*", "kind": "parameters"}, {"name": "logits", "kind": "logits", "why": "..."}]
    >>> [line["name"] for line in policy.forbidden(leaves)]
    ['logits']
    >>> shared = [{"name": "parameters/*", "kind": "parameters", "to": "peers"}]
    >>> len(policy.forbidden(shared)), len(SitePolicy(allow={"parameters"}, peers=[]).forbidden(shared))
    (0, 1)
    """

    allow: frozenset[Kind] = Field(description="kinds of content that may leave this site")
    peers: frozenset[Kind] | None = Field(
        None, description="kinds that the server may pass on to other sites; unset: all that are allowed"
    )
    experiment: str | None = Field(
        None, min_length=1, description="digest of the only experiment to take part in; unset: any"
    )

    @field_validator("allow", "peers", mode="before")
    @classmethod
    def _known(cls, value: Any, field: ValidationInfo) -> Any:
        if value is None and field.field_name == "peers":
            return None
        if not isinstance(value, list | tuple | set | frozenset):
            raise ValueError("write a list of kinds, as in [parameters, statistics, metrics]")
        for kind in value:
            if kind not in KINDS:
                raise ValueError(f"unknown kind {kind!r}: {did_you_mean(str(kind), KINDS)}")
        return frozenset(value)

    @field_validator("experiment", mode="before")
    @classmethod
    def _quoted(cls, value: Any) -> Any:
        if value is not None and not isinstance(value, str):
            raise ValueError("write the digest in quotes")  # YAML takes digits alone for a number
        return value

    def forbidden(self, leaves: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
        """The lines of a manifest that this policy does not allow; unknown kinds are never allowed."""
        return [line for line in leaves if not self.allows(line)]

    def allows(self, line: Mapping[str, Any]) -> bool:
        """Whether what a line declares may leave, to its receiver."""
        kind = line.get("kind")
        return kind in self.allow and (line.get("to") != "peers" or self.peers is None or kind in self.peers)

    def withheld(self, leaves: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
        """Forbidden lines without which the site takes part: their tensors are taken out of its replies.

        They are optional, or for peers and empty in the rehearsal, such as BatchNorm's statistics without BatchNorm.
        """
        return [line for line in self.forbidden(leaves) if line.get("optional") is True or self._is_empty(line)]

    def _is_empty(self, line: Mapping[str, Any]) -> bool:
        return line.get("kind") in self.allow and line.get("to") == "peers" and line.get("tensors") == 0

    def refusal(self, manifest: Mapping[str, Any], site: int | None = None, digest: str | None = None) -> str | None:
        """Why this site does not take part, in a sentence for both ends; None where it does.

        `digest` is that of the experiment; a site that agreed to one experiment takes part in no other, nor in one
        without a digest.
        """
        who = "this site" if site is None else f"site {site}"
        if self.experiment is not None and self.experiment != digest:
            asked = f"this is {digest}" if digest else "this one came without a digest"
            return f"{who} does not take part: its policy agrees to experiment {self.experiment} only, and {asked}"
        withheld = self.withheld(manifest["leaves"])
        lines = [line for line in self.forbidden(manifest["leaves"]) if line not in withheld]
        if not lines:
            return None
        what = dict.fromkeys(f"{line.get('kind')} ({line.get('why', 'for no stated reason')})" for line in lines)
        sends = f"{who} does not take part: {manifest['method']}"
        if self.peers is not None and all(line.get("kind") in self.allow for line in lines):
            passed = _only(self.peers, "to be passed on")
            return f"{sends} passes {listed(list(what))} on to other sites, and its policy allows {passed}"
        return f"{sends} sends {listed(list(what))}, and its policy allows {_only(self.allow, 'to leave')}"


def _only(kinds: frozenset[Kind], what: str) -> str:
    allowed = [kind for kind in KINDS if kind in kinds]
    return f"{listed(allowed)} only" if allowed else f"nothing {what}"


def read_policy(path: Path) -> SitePolicy:
    """Read a site's policy file; an invalid file is an error, so that nothing is allowed by mistake."""
    if not path.exists():
        raise InputError(f"{path} is missing: without a policy nothing leaves; write `allow: [...]` into it")
    return read_settings(path, SitePolicy, "write what may leave, as in `allow: [parameters, statistics, metrics]`")
