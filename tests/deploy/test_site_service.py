"""What a site says to the server's questions, and what it refuses."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from fedstill.core.errors import InputError, RunError
from fedstill.core.message import Message
from fedstill.core.protocols import StateVersion
from fedstill.data.catalogue import load
from fedstill.data.image_augmentation import ImageAugmentation
from fedstill.deploy.deployment_folder import open_site
from fedstill.deploy.deployment_plan import server_plan, shared_digest
from fedstill.deploy.site_registry import SiteFacts, experiment_digest, for_sites, other_label_spaces, plugins, versions
from fedstill.deploy.site_service import SiteService
from fedstill.deploy.site_state import SiteStates
from fedstill.methods.wrappers.privacy_accounting import replies_epsilon, steps_epsilon
from fedstill.runtime.assemble import make_experiment

GREETING: dict[str, Any] = {**versions(), "plugins": plugins()}


@pytest.fixture
def service(stage: Any) -> SiteService:
    made = stage(1)
    return SiteService(open_site(made.folder, 0), load(f"npz:{made.shard(0)}"), made.notes)


def offer(service: SiteService, **changes: Any) -> dict[str, Any]:
    """What a server would ask, with whatever a test wants different."""
    given = {"method": "fedavg", "model": "mlp", "rounds": 2, "training": {"epochs": 1, "batch": 64}, **changes}
    facts = SiteFacts.of(service.bundle)
    plan, question = server_plan(for_sites(make_experiment(given), 1, "clinics"), [facts])
    agreement = {"experiment": plan.experiment.model_dump(mode="json"), "question": asdict(question), "client": 0}
    return {
        **GREETING,
        "run": plan.identity,
        "experiment": experiment_digest(plan.experiment),
        "fingerprint": facts.fingerprint,
        "shared": shared_digest(plan),
        "agreement": json.dumps(agreement),
    }


def test_a_site_tells_what_its_data_is_about(service: SiteService) -> None:
    said = service.enrol(GREETING)
    facts = SiteFacts.read(str(said["facts"]))
    assert said["status"] == "here"
    assert (facts.samples, facts.shape) == (len(service.bundle.train), (1, 8, 8))
    assert facts.classes == tuple("0123456789")


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"fedstill": "0.0.1"}, "version of fedstill .*, and the server has 0.0.1: install the same"),
        ({"behaviour": 1}, "it has behaviour .*, and the server has 1"),
        ({"protocol": 99}, "it has protocol 5, and the server has 99"),
        ({"plugins": '["feed"]'}, "its plugins are not those of the server"),
    ],
)
def test_other_versions_and_other_plugins_are_refused(service: SiteService, changes: Any, sentence: str) -> None:
    said = service.enrol({**GREETING, **changes})
    assert said["status"] == "refused"
    assert re.search(sentence, str(said["detail"]))
    assert re.search(sentence, service.watcher.text)  # type: ignore[attr-defined]


def test_another_recipe_than_the_server_names_is_refused(service: SiteService) -> None:
    asked = offer(service)
    agreement = json.loads(asked["agreement"])
    agreement["experiment"]["rounds"] = 3
    said = service.accept({**asked, "agreement": json.dumps(agreement)})
    assert said["status"] == "refused"
    assert "their recipes differ" in str(said["detail"])


def test_a_policy_that_names_one_experiment_refuses_all_others(service: SiteService) -> None:
    asked = offer(service)
    policy = service.folder.path / "policy.yaml"
    policy.write_text("allow: [parameters, statistics, metrics]\nexperiment: 'abc'\n")
    said = service.accept(asked)
    assert said["status"] == "refused"
    assert f"agrees to experiment abc only, and this is {asked['experiment']}" in str(said["detail"])
    policy.write_text(f"allow: [parameters, statistics, metrics]\nexperiment: '{asked['experiment']}'\n")
    assert service.accept(asked)["status"] == "ready"


@pytest.mark.parametrize(
    "text", ["", "{}", "[]", '{"experiment": 3}', '{"experiment": {}, "client": -1, "question": {}}', "x" * 1000]
)
def test_what_is_no_experiment_is_refused(service: SiteService, text: str) -> None:
    said = service.accept({**offer(service), "agreement": text})
    assert said["status"] == "refused"
    assert "cannot be read" in str(said["detail"])


@pytest.mark.parametrize(
    ("name", "sentence"),
    [("focal", "training.loss: unknown choice 'focal'"), ("focal-0a1b2c", "was passed as an object")],
)
def test_a_loss_that_a_site_does_not_have_is_refused(service: SiteService, name: str, sentence: str) -> None:
    asked = offer(service)
    agreement = json.loads(asked["agreement"])
    agreement["experiment"]["training"]["loss"] = name
    said = service.accept({**asked, "agreement": json.dumps(agreement)})
    assert said["status"] == "refused"
    assert sentence in str(said["detail"])
    with pytest.raises(InputError, match="register it in a plugin file that the server and every site use"):
        for_sites(make_experiment({"method": "fedavg", "training": {"loss": "focal-0a1b2c"}}), 2, "clinics")


def test_an_experiment_names_parts_that_are_installed_here_and_brings_none(service: SiteService) -> None:
    """Nothing in it is a path to code: an unregistered method is a sentence, and so is a teacher's function."""
    asked = offer(service)
    for changes in ({"method": {"name": "os.system"}}, {"teachers": [{"call": "os:system"}]}):
        agreement = json.loads(asked["agreement"])
        agreement["experiment"] |= changes
        said = service.accept({**asked, "agreement": json.dumps(agreement)})
        assert said["status"] == "refused", changes


def test_the_manifest_comes_from_a_rehearsal_on_the_sites_own_data(service: SiteService) -> None:
    assert service.accept(offer(service))["status"] == "ready"
    (manifest,) = service.watcher.manifests  # type: ignore[attr-defined]
    lines = {line["name"]: line for line in manifest["leaves"]}
    (part,) = service.parts.values()
    model = part.plan.task.build("mlp")
    assert lines["model/parameters/*"]["bytes"] == 4 * sum(tensor.numel() for tensor in model.parameters())
    assert lines["scores/*"]["bytes"] == 8 * (10 * 10 + 3)
    assert lines["facts"]["kind"] == "statistics"
    assert not (service.folder.path / "states").exists(), "a rehearsal leaves nothing behind"


def test_a_request_of_an_experiment_nobody_agreed_to_is_not_answered(service: SiteService) -> None:
    for run in ("feed", "../../site", ""):
        message, header = service.exchange(
            Message({}), {"run": run, "exchange": "train", "round": 0, "since": -1, "kept": -1, "state": ""}
        )
        assert not message
        assert "has not accepted" in str(header["detail"])


def test_a_restarted_site_goes_on_with_what_it_had_agreed_to(service: SiteService) -> None:
    asked = offer(service)
    service.accept(asked)
    again = SiteService(service.folder, service.bundle, service.watcher)
    plan = service.parts[asked["run"]].plan
    server = plan.method.start(plan.streams)
    header = {"run": asked["run"], "exchange": "train", "round": 0, "since": -1, "kept": -1, "state": ""}
    first = service.exchange(Message(server), header)
    second = again.exchange(Message(server), header)
    assert first[1]["status"] == second[1]["status"] == "reply"
    assert all(torch.equal(tensor, second[0][name]) for name, tensor in first[0].items())
    other = SiteService(service.folder, replace(service.bundle, test=service.bundle.train), service.watcher)
    assert "with other data than it has now" in str(other.exchange(Message(server), header)[1]["detail"])


def test_sites_of_another_label_space_are_told_apart() -> None:
    facts = SiteFacts.of(load("digits"))
    other = facts.model_copy(update={"classes": ("cat", "dog")})
    flat = facts.model_copy(update={"shape": (3, 8, 8)})
    refused = other_label_spaces({0: other, 1: facts, 2: facts, 3: flat})
    assert set(refused) == {0, 3}
    assert "its classes are cat, dog, the others' 0, 1, 2, 3 and 6 more" in refused[0]
    assert (
        "of shape (3, 8, 8), the others images of shape (1, 8, 8): set its data's size=8 and channels=1" in refused[3]
    )
    assert set(other_label_spaces({0: facts, 1: other})) == {1}, "of equals the first counts"


def test_states_are_found_by_the_round_and_the_digest_that_the_server_names(tmp_path: Path) -> None:
    folder = tmp_path / "states"
    states = SiteStates(folder)
    assert states.load(None) == {}
    made = [StateVersion(round, states.save(round, {"x": torch.tensor(round)})) for round in range(4)]
    other = StateVersion(2, states.save(2, {"x": torch.tensor(7)}))  # another attempt at the same round
    assert int(states.load(made[2])["x"]) == 2  # round 3 was never accepted, nor was the other attempt
    assert sorted(path.name[0] for path in folder.iterdir()) == ["1", "2"]
    with pytest.raises(RunError, match="does not have the state of round 3 that the server knows"):
        states.load(other)
    states.save(2, {"x": torch.tensor(2)})
    assert int(states.load(made[1])["x"]) == 1  # the server has gone back a round
    (folder / f"1-{made[1].digest}.safetensors").write_bytes(b"junk")
    with pytest.raises(RunError, match="damaged"):
        states.load(made[1])
    (folder / f"1-{made[1].digest}.safetensors").write_bytes(Message({"x": torch.tensor(5)}).encode())
    with pytest.raises(RunError, match="its digest is not the one in its name"):
        states.load(made[1])
    assert SiteStates(folder).load(None) == {}
    assert list(folder.iterdir()) == []


def test_states_of_the_round_under_way_stay_until_it_is_over(tmp_path: Path) -> None:
    """A server that was killed in round 1 may ask for its first exchange again after the second, or for the second."""
    states = SiteStates(tmp_path)
    made = [StateVersion(round, states.save(round, {"x": torch.tensor(x)})) for x, round in enumerate((0, 1, 1))]
    assert int(states.load(made[2], round=1)["x"]) == 2
    assert int(states.load(made[1], round=1)["x"]) == 1
    assert int(states.load(made[0], round=1)["x"]) == 0
    assert int(states.load(made[2], round=1)["x"]) == 2
    assert int(states.load(made[2], round=2)["x"]) == 2
    assert sorted(path.name[0] for path in tmp_path.iterdir()) == ["0", "1"]


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"classes": list("9876543210")}, "other classes or sample shapes"),
        ({"classes": [f"class {number}" for number in range(16)]}, "other classes or sample shapes"),
        ({"shape": [1, 9, 9]}, "other classes or sample shapes"),
        ({"shape": [1, 10**6, 10**6]}, "other classes or sample shapes"),
    ],
)
def test_an_experiment_about_other_data_is_refused(service: SiteService, changes: Any, sentence: str) -> None:
    asked = offer(service)
    agreement = json.loads(asked["agreement"])
    agreement["question"] |= changes
    said = service.accept({**asked, "agreement": json.dumps(agreement)})
    assert said["status"] == "refused"
    assert sentence in str(said["detail"])


def test_an_experiment_for_simulations_is_refused(service: SiteService) -> None:
    """Noise that the server could compute again, a simulated attack, evaluation at the server: not at a real site."""
    private = {"name": "client-level", "where": "client", "delta": 1e-6, "randomness": "named"}
    for changes in ({"privacy": private}, {"evaluation": "central"}, {"partition": {"name": "iid"}}):
        asked = offer(service, method={"name": "fedavg", "weights": "uniform"})
        agreement = json.loads(asked["agreement"])
        agreement["experiment"] |= changes
        said = service.accept({**asked, "agreement": json.dumps(agreement)})
        assert said["status"] == "refused", changes
        assert "one for simulations" in str(said["detail"]), changes


@pytest.mark.parametrize("client", [1, 7, 10**30])
def test_a_client_that_is_not_there_is_refused(service: SiteService, client: int) -> None:
    asked = offer(service)
    agreement = {**json.loads(asked["agreement"]), "client": client}
    assert service.accept({**asked, "agreement": json.dumps(agreement)})["status"] == "refused"


def test_other_data_than_the_run_began_with_is_refused(service: SiteService) -> None:
    said = service.accept({**offer(service), "fingerprint": "0" * 64})
    assert "its data has changed since this run started" in str(said["detail"])


def test_a_policy_without_statistics_says_nothing_of_the_data(service: SiteService) -> None:
    (service.folder.path / "policy.yaml").write_text("allow: [parameters]\n")
    said = service.enrol(GREETING)
    assert said["status"] == "refused"
    assert "facts" not in said
    (service.folder.path / "policy.yaml").unlink()
    assert service.enrol(GREETING)["status"] == "refused"


def test_a_server_cannot_choose_which_files_of_a_site_are_opened(service: SiteService) -> None:
    for name in ("npz:/etc/shadow", "npz:/nowhere.npz", "digits", "patches:image:/etc/hostname"):
        asked = offer(service, method={"name": "fedmd", "proxy": "patches:noise:64x64", "samples": 10})
        agreement = json.loads(asked["agreement"])
        agreement["experiment"]["method"]["proxy"] = name
        said = service.accept({**asked, "agreement": json.dumps(agreement)})
        assert said["status"] == "refused", name
        assert "samples that this site was not started with" in str(said["detail"]), name


def test_images_are_augmented_at_sites_and_other_augmentations_refused_by_the_server(service: SiteService) -> None:
    asked = offer(service, augmentation={"name": "images", "flip": False})
    assert service.accept(asked)["status"] == "ready"
    (part,) = service.parts.values()
    assert part.plan.task.augmentation == ImageAugmentation(flip=False)
    with pytest.raises(InputError, match="the augmentation points is for clouds, and this data holds images"):
        offer(service, augmentation="points")


def image(path: Path, colour: int) -> Path:
    pixels = np.random.default_rng(0).integers(0, 200, (40, 40, 3)) + colour
    Image.fromarray(pixels.astype(np.uint8)).save(path)
    return path


def test_a_site_with_another_image_does_not_take_part(service: SiteService, tmp_path: Path) -> None:
    """The same name at both ends, another file: refused before any round; the right file is accepted."""
    file = image(tmp_path / "street.png", 0)
    service.proxies = [f"patches:image:{file}"]
    (service.folder.path / "policy.yaml").write_text("allow: [parameters, statistics, metrics, logits]\n")
    method = {"name": "feddf", "proxy": service.proxies[0], "samples": 10, "steps": 1}
    asked = offer(service, method=method)
    image(file, 1)
    said, shown = service.accept(asked), service.watcher.text  # type: ignore[attr-defined]
    own = offer(service, method=method)["shared"]
    assert own != asked["shared"]
    assert said["status"] == "refused"
    for text in (str(said["detail"]), shown):
        assert f"has the digest {own[:8]} here and {asked['shared'][:8]} at the server: give both the same" in text
    assert f"this site does not take part: patches:image:{file}, which it shares with the server" in shown
    assert str(file) not in str(said["detail"])
    assert not service.parts
    image(file, 0)
    assert service.accept(asked)["status"] == "ready"
    image(file, 1)
    restarted = SiteService(service.folder, service.bundle, service.watcher, proxies=service.proxies)
    header = {"run": asked["run"], "exchange": "train", "round": 0, "since": -1, "kept": -1, "state": ""}
    assert "give both the same image" in str(restarted.exchange(Message({}), header)[1]["detail"])


def test_a_site_or_a_server_without_the_image_does_not_take_part(service: SiteService, tmp_path: Path) -> None:
    file = image(tmp_path / "street.png", 0)
    service.proxies = [f"patches:image:{file}"]
    asked = offer(service, method={"name": "feddf", "proxy": service.proxies[0], "samples": 10, "steps": 1})
    file.unlink()
    said = service.accept(asked)
    assert said["status"] == "refused"
    assert "there is no file …" in str(said["detail"])
    with pytest.raises(InputError, match=f"there is no file {file}, neither here nor under the data root"):
        offer(service, method={"name": "feddf", "proxy": service.proxies[0]})


def test_what_goes_wrong_here_is_told_without_paths_and_data(service: SiteService) -> None:
    asked = offer(service)
    service.accept(asked)
    (service.folder.path / "policy.yaml").unlink()
    header = {"run": asked["run"], "exchange": "train", "round": 0, "since": -1, "kept": -1, "state": ""}
    _, told = service.exchange(Message({}), header)
    assert "is missing" in str(told["detail"])
    assert str(service.folder.path) not in str(told["detail"])
    (service.folder.path / "policy.yaml").write_text("allow: [parameters, statistics, metrics]\n")
    _, told = service.exchange(Message({"model/parameters/nonsense": torch.ones(3)}), header)
    assert told["status"] == "failed"
    assert str(told["detail"]).isidentifier(), "of a foreign exception only the kind"


def test_paths_with_blanks_are_not_told_in_part(
    service: SiteService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "Dr. Who"))
    monkeypatch.chdir(tmp_path)
    site = tmp_path / "west wing" / "site 0"
    root = tmp_path / "all scans" / "of 2024"
    bundle = replace(service.bundle, name="npz:old scans/ward 3.npz")
    site.mkdir(parents=True)
    there = SiteService(replace(service.folder, path=site), bundle, service.watcher, root)
    said = there.enrol(GREETING)
    assert str(said["detail"]).startswith("… is missing: without a policy nothing leaves")
    for text in (
        f"cannot read {site}: it is gone",
        f"cannot read {root}/x.npz: it is gone",
        "cannot read old scans/ward 3.npz: it is gone",
        f"cannot read {tmp_path}/old scans/ward 3.npz: it is gone",
        f"cannot read {tmp_path}/Dr. Who/notes: it is gone",
        "cannot read /elsewhere/x: it is gone",
    ):
        assert there.told(text) == "cannot read …: it is gone", text
    assert there.told("its data is not that of 3 sites") == "its data is not that of 3 sites"


PRIVATE = {
    "method": {"name": "fedavg", "weights": "uniform"},
    "privacy": {"name": "client-level", "where": "client", "noise": 2.0, "clip": 0.5},
    "rounds": 9,
}


def ask(service: SiteService, run: str, round: int, scale: float = 1.0) -> tuple[Message, dict[str, Any]]:
    plan = service.parts[run].plan
    state = {
        name: scale * one if one.is_floating_point() else one for name, one in plan.method.start(plan.streams).items()
    }
    header = {"run": run, "exchange": "train", "round": round, "since": -1, "kept": -1, "state": ""}
    request = {name: one for name, one in state.items() if name.startswith("model/")}
    return service.exchange(Message(request), header)


def test_noise_cannot_be_averaged_away_by_asking_again(service: SiteService) -> None:
    """Noise is drawn from the operating system: computed twice, the reply would differ."""
    asked = offer(service, **PRIVATE)
    assert service.accept(asked)["status"] == "ready"
    replies = {ask(service, asked["run"], 0)[0].encode() for _ in range(5)}
    assert len(replies) == 1
    again = SiteService(service.folder, service.bundle, service.watcher)
    again._part(asked["run"])
    assert {ask(again, asked["run"], 0)[0].encode()} == replies
    other, header = ask(service, asked["run"], 0, scale=1.5)
    assert (header["status"], len(other)) == ("refused", 0)


def test_the_epsilon_of_all_replies_is_bounded_over_runs(service: SiteService) -> None:
    policy = service.folder.path / "policy.yaml"
    limit = replies_epsilon([2.0] * 3, 1e-5) + 1e-9  # of one client in its cohort: the noise of a reply is z
    policy.write_text(
        f"allow: [parameters, statistics, metrics]\nprivacy: {{noise: 2.0, clip: 0.5, epsilon: {limit}}}\n"
    )
    first, second = offer(service, **PRIVATE), offer(service, **PRIVATE, seed=1)
    for asked in (first, second):
        assert service.accept(asked)["status"] == "ready"
    given = [ask(service, run, round)[1] for run, round in ((first["run"], 0), (second["run"], 0), (first["run"], 1))]
    assert [one["status"] for one in given] == ["reply"] * 3
    assert ask(service, first["run"], 1)[1] == given[2], "what was answered counts once"
    _, refused = ask(service, second["run"], 1)
    assert refused["status"] == "refused"
    assert "an epsilon of" in str(refused["detail"])
    assert "against the server over all runs" in str(refused["detail"])
    assert service.accept(offer(service))["status"] == "refused", "without noise nothing is answered any more"


def test_the_epsilon_of_a_record_is_bounded_over_runs(service: SiteService) -> None:
    """By the steps behind each reply, from the site's log; a reply without such noise leaves nothing to protect."""
    policy = service.folder.path / "policy.yaml"
    asked = {"name": "record-level", "noise": 2.0, "delta": 1e-4}
    first, second = offer(service, privacy=asked, rounds=3), offer(service, privacy=asked, rounds=3, seed=1)
    plain = offer(service)
    assert [service.accept(one)["status"] for one in (first, second, plain)] == ["ready"] * 3
    part = service.parts[first["run"]]
    samples, training = part.plan.profiles[0].samples, part.experiment.training
    steps = training.epochs * -(-samples // training.batch)
    limit = steps_epsilon(2.0, training.batch / samples, 2 * steps, 1e-5) + 1e-9
    policy.write_text(
        f"allow: [parameters, statistics, metrics]\nprivacy: {{level: record, noise: 2.0, epsilon: {limit}}}\n"
    )
    assert [ask(service, one["run"], 0)[1]["status"] for one in (first, second)] == ["reply"] * 2
    again = SiteService(service.folder, service.bundle, service.watcher)  # which reads its log
    assert [one and one.steps for one in again.answers.used.steps] == [steps] * 2
    again._part(first["run"])
    _, refused = ask(again, first["run"], 1)
    assert "an epsilon of" in str(refused["detail"])
    assert service.accept(offer(service))["status"] == "refused", "without noise in its steps nothing is answered"
    policy.write_text("allow: [parameters, statistics, metrics]\n")
    assert ask(service, plain["run"], 0)[1]["status"] == "reply"
    policy.write_text("allow: [parameters, statistics, metrics]\nprivacy: {level: record, epsilon: 1000.0}\n")
    assert "it would be inf" in str(ask(service, first["run"], 1)[1]["detail"])


def test_an_evaluation_needs_no_epsilon_of_its_own(service: SiteService) -> None:
    """Its sums get no noise and are not counted; the last round of a budget is evaluated, too."""
    limit = replies_epsilon([2.0], 1e-5) + 1e-9
    (service.folder.path / "policy.yaml").write_text(
        f"allow: [parameters, statistics, metrics]\nprivacy: {{noise: 2.0, clip: 0.5, epsilon: {limit}}}\n"
    )
    asked = offer(service, **PRIVATE)
    assert service.accept(asked)["status"] == "ready"
    assert ask(service, asked["run"], 0)[1]["status"] == "reply"
    plan = service.parts[asked["run"]].plan
    model = plan.method.models(plan.method.start(plan.streams))["mlp"]
    header = {"run": asked["run"], "exchange": "evaluate", "round": 0, "since": -1, "kept": -1, "state": ""}
    told = service.exchange(Message({f"shared/mlp/{name}": one for name, one in model.items()}), header)[1]
    assert told["status"] == "reply", told
    assert ask(service, asked["run"], 1)[1]["status"] == "refused"


def test_replies_without_noise_count_as_everything(service: SiteService) -> None:
    plain, private = offer(service), offer(service, **PRIVATE)
    for asked in (plain, private):
        service.accept(asked)
    assert ask(service, plain["run"], 0)[1]["status"] == "reply"
    policy = service.folder.path / "policy.yaml"
    policy.write_text("allow: [parameters, statistics, metrics]\nprivacy: {epsilon: 1000.0}\n")
    assert "it would be inf" in str(ask(service, private["run"], 0)[1]["detail"])


def test_a_reply_that_is_too_large_does_not_leave(service: SiteService) -> None:
    asked = offer(service)
    service.accept(asked)
    (service.folder.path / "policy.yaml").write_text("allow: [parameters, statistics, metrics]\nlargest_reply: 0.001\n")
    message, header = ask(service, asked["run"], 0)
    assert (header["status"], len(message)) == ("refused", 0)
    assert "its policy allows replies of 0.001 megabytes" in str(header["detail"])
    assert service.answers.used.answers == 0


def test_rounds_count_over_runs(service: SiteService) -> None:
    (service.folder.path / "policy.yaml").write_text("allow: [parameters, statistics, metrics]\nrounds: 2\n")
    first, second = offer(service), offer(service, seed=1)
    for asked in (first, second):
        service.accept(asked)
    assert ask(service, first["run"], 0)[1]["status"] == "reply"
    assert ask(service, second["run"], 0)[1]["status"] == "reply"
    assert "allows 2 rounds over all runs" in str(ask(service, first["run"], 1)[1]["detail"])
