"""What a site lets go, and the sentences in which it refuses."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from fedstill.core.errors import InputError
from fedstill.core.noise import StepNoise
from fedstill.deploy.demands import Terms
from fedstill.deploy.policy import EXAMPLE, KINDS, SitePolicy, earlier_form, read_policy
from fedstill.deploy.site_registry import experiment_digest
from fedstill.runtime.assemble import make_experiment
from fedstill.runtime.egress_manifest import egress_manifest


def line(kind: str, why: str = "what it is") -> dict[str, Any]:
    return {"name": f"{kind}/*", "kind": kind, "to": "server", "bytes": 8, "why": why}


def manifest(*lines: dict[str, Any], method: str = "fedgkt") -> dict[str, Any]:
    return {"method": method, "leaves": list(lines)}


USUAL = SitePolicy(allow=["parameters", "statistics", "metrics"])  # type: ignore[arg-type]


def test_the_sentence_for_both_ends() -> None:
    asked = manifest(line("parameters"), line("labels", "labels of the training samples"))
    assert USUAL.refusal(asked, 2) == (
        "site 2 does not take part: fedgkt sends labels (labels of the training samples),"
        " and its policy allows parameters, statistics and metrics only"
    )
    assert [one["kind"] for one in USUAL.forbidden(asked["leaves"])] == ["labels"]


def test_several_lines_and_an_empty_policy() -> None:
    asked = manifest(line("logits", "a"), line("features", "b"), line("features", "b"))
    told = USUAL.refusal(asked)
    assert told is not None
    assert told.startswith("this site does not take part: fedgkt sends logits (a) and features (b), and its policy")
    nothing = SitePolicy(allow=frozenset())
    assert str(nothing.refusal(manifest(line("metrics")), 0)).endswith("and its policy allows nothing to leave")


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_needs_its_own_permission(kind: str) -> None:
    others = SitePolicy(allow=[one for one in KINDS if one != kind])  # type: ignore[arg-type]
    assert others.refusal(manifest(line(kind))) is not None
    assert SitePolicy(allow=[kind]).refusal(manifest(line(kind))) is None  # type: ignore[list-item,arg-type]


def test_what_nobody_knows_is_never_allowed() -> None:
    everything = SitePolicy(allow=frozenset(KINDS))
    assert everything.refusal(manifest({"name": "x", "kind": "novel"})) is not None
    assert everything.refusal(manifest({"name": "x"})) is not None


def test_a_site_that_agreed_to_one_experiment() -> None:
    pinned = SitePolicy(allow=USUAL.allow, experiment="ab12")
    fine = manifest(line("parameters"))
    assert pinned.refusal(fine, 1, "ab12") is None
    assert pinned.refusal(fine, 1, "cd34") == (
        "site 1 does not take part: its policy agrees to experiment ab12 only, and this is cd34"
    )
    assert "came without a digest" in str(pinned.refusal(fine, 1))
    assert "sends labels" in str(pinned.refusal(manifest(line("labels")), 1, "ab12")), "a pin allows nothing by itself"
    assert USUAL.refusal(fine, 1, "cd34") is None


@pytest.mark.parametrize("method", ["fedavg", "scaffold", "fedbn"])
def test_the_example_allows_what_sends_models(method: str, tiny_plan: Any, tmp_path: Path) -> None:
    """On manifests of real experiments, evaluated on site; without `statistics` they are refused."""
    (tmp_path / "policy.yaml").write_text(EXAMPLE)
    policy = read_policy(tmp_path / "policy.yaml")
    assert (policy.allow, policy.peers) == (USUAL.allow, frozenset())
    made = egress_manifest(tiny_plan(method=method, model="cnn-bn", evaluation="on-site"))
    assert policy.refusal(made) is None
    less = SitePolicy(allow=frozenset({"parameters", "metrics"}))
    assert {one["kind"] for one in less.forbidden(made["leaves"])} == {"statistics"}


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("allow: [parameter]", "unknown kind 'parameter': did you mean 'parameters'?"),
        ("allow: parameters", "allow: write a list of kinds"),
        ("allow:", "allow: write a list of kinds"),
        ("allow: [[labels]]", "unknown kind"),
        ("experiment: abc", "allow: field required"),
        ("alow: [parameters]", "allow: field required"),
        ("allow: [metrics]\nexperimnt: abc", "unknown setting 'experimnt': did you mean 'experiment'?"),
        ("allow: [metrics]\nexperiment: 1234", "experiment: write the digest in quotes"),
        ("allow: [metrics]\nexperiment: ''", "experiment: string should have at least 1 character"),
        ("allow: {parameters: everybody}", "allow.parameters: write server, or [server, peers]"),
        ("allow: {parameters: [peers]}", "what peers are given passes through the server"),
        ("allow: {weights: server}", "unknown kind 'weights'"),
        ("allow: [metrics]\nrounds: -1", "rounds: input should be greater than or equal to 0"),
        ("allow: [metrics]\nprivacy: {noise: 0}", "privacy.noise: input should be greater than 0"),
        ("allow: [metrics]\nprivacy: {noize: 1}", "noize"),
        ("allow: [metrics]\nprivacy: {level: sample}", "privacy.level"),
        ("allow: [metrics]\nprivacy: {level: record, colluding: 1}", "leave it out with level: record"),
        ("", "holds no settings: write what may leave"),
        ("- parameters", "holds no settings"),
        ("allow: [", "cannot be read"),
        ("allow: [metrics]\nallow: [labels]", "'allow' stands there twice"),
        ("allow: {metrics: server, metrics: [server, peers]}", "'metrics' stands there twice"),
        ("allow: {metrics: }", ": allow.metrics: write server, or [server, peers]"),
        ("allow: !!python/object:os.system [x]", "cannot be read"),
        ("allow: [metrics]\nrounds: yes", "rounds: write a value, and not yes or no"),
        ("allow: [metrics]\nanswers: off", "answers: write a value, and not yes or no"),
        ("allow: [metrics]\nprivacy: {noise: true}", "privacy.noise: write a value, and not yes or no"),
        ("allow: [metrics]\nprivacy: {epsilon: .nan}", "privacy.epsilon: input should be a finite number"),
        ("allow: [metrics]\nstored_megabytes: .inf", "stored_megabytes: input should be a finite number"),
        ("x: &x {rounds: 9}\n<<: *x\nallow: [metrics]\nrounds: 1000", "'rounds' stands there twice"),
    ],
)
def test_a_policy_that_cannot_be_understood_is_refused(text: str, sentence: str, tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text(text)
    with pytest.raises(InputError) as caught:
        read_policy(path)
    told = str(caught.value)
    assert sentence in told
    assert told.startswith(str(path))
    assert "\n" not in told


def test_no_policy_is_no_permission(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="without a policy nothing leaves"):
        read_policy(tmp_path / "policy.yaml")
    (tmp_path / "policy.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="cannot be read"):
        read_policy(tmp_path / "policy.yaml")


def test_a_policy_cannot_be_changed_in_passing() -> None:
    with pytest.raises(ValidationError):
        USUAL.allow = frozenset(KINDS)  # type: ignore[misc]


FIRST_RELEASE = """\
# What may leave this site. An experiment that sends anything else is refused here, before it starts.
allow: [parameters, statistics, metrics, logits, features, labels, inputs]

experiment: "f784f9ee1c805de8"
"""


def test_a_policy_of_the_first_release_is_read(tmp_path: Path) -> None:
    """Every kind it could name, and the digest of an experiment whose settings have other names today."""
    path = tmp_path / "policy.yaml"
    path.write_text(FIRST_RELEASE)
    policy = read_policy(path)
    assert policy.allow == set(KINDS)
    agreed = make_experiment({"method": "fedavg", "mitigation": "mimic", "dropout": 0.2})
    assert policy.refusal(manifest(line("parameters")), digest=experiment_digest(agreed)) is None
    told = str(earlier_form(path))
    assert (
        "nothing may be passed on to other sites any more; it sets no rounds, answers, least_samples and privacy"
        in told
    )
    path.write_text("allow: [parameters]\npeers: [parameters]\nrounds: 3\n")
    assert "any more" not in str(earlier_form(path))
    path.write_text(EXAMPLE)
    assert earlier_form(path) is None


def test_what_may_leave_need_not_be_passed_on_to_peers() -> None:
    own, shared = line("parameters"), {**line("parameters", "a model"), "to": "peers", "tensors": 2}
    closed = SitePolicy(allow=["parameters", "metrics"], peers=["metrics"])  # type: ignore[arg-type]
    assert closed.refusal(manifest(own, method="fedavg")) is None
    assert closed.refusal(manifest(own, shared, method="qkt"), 1) == (
        "site 1 does not take part: qkt passes parameters (a model) on to other sites, and its policy allows metrics"
        " only; `parameters: [server, peers]` under `allow` would change that"
    )
    nobody = SitePolicy(allow=["parameters"], peers=[])  # type: ignore[arg-type]
    assert "and its policy allows nothing to be passed on;" in str(nobody.refusal(manifest(shared)))
    assert USUAL.refusal(manifest(shared)) is not None  # unset: nothing, unlike in earlier versions
    named = SitePolicy(allow={"parameters": ["server", "peers"]})  # type: ignore[arg-type]
    assert named.refusal(manifest(own, shared)) is None
    more = SitePolicy(allow=["metrics"], peers=["parameters"])  # type: ignore[arg-type]
    assert more.refusal(manifest(shared)) is not None  # what may not leave cannot be passed on either


def test_lines_that_a_site_withholds_and_takes_part() -> None:
    """Optional ones, and those for peers that were empty in the rehearsal; nothing else."""
    recall = {**line("metrics"), "name": "recall", "to": "peers", "tensors": 1, "optional": True}
    empty = {**line("statistics"), "to": "peers", "tensors": 0}
    full = {**line("statistics"), "to": "peers", "tensors": 3}
    policy = SitePolicy(allow=["parameters", "statistics", "metrics"], peers=["parameters"])  # type: ignore[arg-type]
    assert policy.withheld([line("metrics"), recall, empty, full]) == [recall, empty]
    assert policy.refusal(manifest(recall, empty)) is None
    assert policy.refusal(manifest(recall, full)) is not None
    assert USUAL.withheld([recall, empty, full]) == [recall, empty]
    open_ = SitePolicy(allow=["statistics", "metrics"], peers=["statistics", "metrics"])  # type: ignore[arg-type]
    assert open_.withheld([recall, empty, full]) == []
    to_server = {**line("logits"), "tensors": 0}
    assert USUAL.withheld([to_server]) == []
    assert USUAL.refusal(manifest(to_server)) is not None


def test_peers_are_kinds_too(tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text("allow: [parameters]\npeers:\n")
    assert read_policy(path).peers == frozenset()
    path.write_text("allow: [parameters]\npeers: [weights]\n")
    with pytest.raises(InputError, match="unknown kind 'weights'"):
        read_policy(path)


STEPS = StepNoise(1.5, 1.0, 0.1, 20)
TERMS = Terms("fedavg", rounds=10, samples=100, class_samples=7, noise=0.3, clip=1.0)


@pytest.mark.parametrize(
    ("demand", "terms", "why"),
    [
        ({"methods": ["fedavg", "scaffold"]}, {}, None),
        ({"methods": "scaffold"}, {}, "its policy allows scaffold, and not fedavg"),
        ({"methods": []}, {}, "its policy allows no method, and not fedavg"),
        ({"least_samples": 100}, {}, None),
        ({"least_samples": 101}, {}, "requires 101 samples behind every reply, and one has fewer"),
        ({"least_class_samples": 7}, {}, None),
        ({"least_class_samples": 8}, {}, "requires 8 samples behind every figure of a class, and one has fewer"),
        ({"privacy": {"noise": 0.3, "clip": 1.0}}, {}, None),
        ({"privacy": {"noise": 0.31}}, {}, "requires noise of at least 0.31 in each reply, and the experiment has 0.3"),
        ({"privacy": {"clip": 0.5}}, {}, "requires updates clipped to 0.5, and the experiment clips to 1"),
        ({"privacy": {"epsilon": 8}}, {"noise": None, "clip": None}, "and the experiment adds none"),
        ({"largest_reply": 0.003}, {}, None),
        ({"largest_reply": 0.0029}, {}, "allows replies of 0.0029 megabytes, and one of the exchange train has 0.003"),
        ({"privacy": {"noise": 0.3}}, {"colluding": 1}, "write `colluding` under `privacy` to accept that"),
        ({"privacy": {"noise": 0.3, "colluding": 1}}, {"colluding": 1}, None),
        ({"privacy": {"noise": 0.4, "colluding": 1}}, {"colluding": 1}, "and the experiment has 0.3"),
        ({"privacy": {"colluding": 2}}, {"colluding": 1}, "its policy assumes 2 sites that work with the server, and"),
        ({"privacy": {"colluding": 2}}, {}, None),  # noise in its own replies is more than it asks for
        ({"privacy": {"level": "record", "noise": 1.5, "clip": 1.0}}, {"noise": None, "steps": STEPS}, None),
        ({"privacy": {"level": "record"}}, {"secure": True, "noise": None, "steps": STEPS}, None),
        (
            {"privacy": {"level": "record", "noise": 2.0}},
            {"steps": STEPS},
            "requires noise of at least 2 in each step of training, and the experiment has 1.5",
        ),
        (
            {"privacy": {"level": "record", "clip": 0.5}},
            {"steps": STEPS},
            "requires the gradient of each record clipped to 0.5, and the experiment clips to 1",
        ),
        ({"privacy": {"level": "record", "epsilon": 8}}, {}, "(privacy=record-level), and the experiment adds none"),
        ({"privacy": {"epsilon": 8}}, {"noise": None, "steps": STEPS}, "`level: record` under `privacy` would demand"),
        ({"secure_aggregation": True}, {}, "its policy requires secure aggregation"),
        ({"secure_aggregation": True}, {"secure": True}, None),
    ],
)
def test_a_policy_can_demand(demand: dict[str, Any], terms: dict[str, Any], why: str | None) -> None:
    policy = SitePolicy(allow=["parameters", "statistics"], **demand)  # type: ignore[arg-type]
    sizes = {"exchange": "train", "bytes": 0.0015 * 2**20}
    labels = {**line("labels"), **sizes, "optional": True}  # which are left out
    asked = manifest(
        line("parameters") | sizes, {**line("statistics"), **sizes, "by_class": True}, labels, method="fedavg"
    )
    told = policy.refusal(asked, 0, None, replace(TERMS, **terms))
    if why is None:
        assert told is None
    else:
        assert why in str(told)


def test_requests_over_the_limit_are_refused_before_any_is_sent() -> None:
    policy = SitePolicy(allow=USUAL.allow, largest_request=1.0)
    asked = manifest(line("parameters"))
    assert policy.refusal(asked) is None, "an agreement of an earlier version"
    assert policy.refusal({**asked, "requests": {"train": 2**20, "evaluate": 9}}) is None
    assert policy.refusal({**asked, "requests": {"train": 2**21, "evaluate": 9}}, 1) == (
        "site 1 does not take part: its policy receives messages of up to 1 megabytes, and a request of the exchange"
        " train has 2"
    )


def test_figures_of_a_class_that_do_not_leave_need_no_samples() -> None:
    policy = SitePolicy(allow=["parameters"], least_class_samples=1000)  # type: ignore[arg-type]
    assert policy.refusal(manifest(line("parameters")), 0, None, TERMS) is None
