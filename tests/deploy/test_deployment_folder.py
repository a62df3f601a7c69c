"""The folder of a deployment: what is in it, who may read it, and what is said of one that is not whole."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import yaml

from fedstill.core.errors import InputError
from fedstill.deploy import create
from fedstill.deploy.certificates import check_certificate, expiry
from fedstill.deploy.deployment_folder import make_deployment, open_server, open_site
from fedstill.deploy.keys import read_tls_key
from fedstill.deploy.renewal import renew_certificate


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("made") / "clinics"
    make_deployment(path, 3, "clinics.example.org", 9123, 90)
    return path


@pytest.fixture
def own(made: Path, tmp_path: Path) -> Path:
    """A copy to damage."""
    return Path(shutil.copytree(made, tmp_path / "clinics"))


def files(path: Path) -> set[str]:
    return {one.relative_to(path).as_posix() for one in path.rglob("*") if one.is_file()}


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_what_is_in_it(made: Path) -> None:
    site = {"ca.crt", "peers.json", "policy.yaml", "secure.key", "site.key", "site.pub", "site.yaml"}
    server = {"ca.crt", "server.crt", "server.key", "deployment.yaml", "sites/0.pub", "sites/1.pub", "sites/2.pub"}
    assert files(made) == {
        "README.md",
        *(f"authority/{name}" for name in ("ca.crt", "ca.key", "deployment.yaml")),
        *(f"server/{name}" for name in server),
        *(f"site-{number}/{name}" for number in range(3) for name in site),
    }
    assert yaml.safe_load((made / "site-2/site.yaml").read_text()) == {
        "name": "clinics",
        "site": 2,
        "sites": 3,
        "address": "clinics.example.org",
        "port": 9123,
    }


def test_private_things_are_private(made: Path) -> None:
    keys = sorted(made.rglob("*.key"))
    assert len(keys) == 8
    assert {mode(key) for key in keys} == {0o600}
    assert {mode(key.parent) for key in keys} == {0o700}
    private = {key.read_bytes() for key in keys}
    assert len(private) == 8
    for other in (path for path in made.rglob("*") if path.is_file() and path.suffix != ".key"):
        assert b"PRIVATE" not in other.read_bytes()


def test_modes_do_not_depend_on_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o000)
    try:
        make_deployment(tmp_path / "open", 1)
    finally:
        os.umask(before)
    assert mode(tmp_path / "open/site-0/site.key") == 0o600
    assert mode(tmp_path / "open/site-0") == 0o700


def test_the_server_opens_it(made: Path) -> None:
    folder = open_server(made)
    assert folder == open_server(made / "server")
    assert (folder.name, folder.address, folder.port, folder.sites) == ("clinics", "clinics.example.org", 9123, 3)
    folder.check()
    check_certificate(folder.ca, folder.certificate, "127.0.0.1")
    left = expiry(folder.certificate) - datetime.now(UTC)
    assert timedelta(days=89) < left <= timedelta(days=90)


@pytest.mark.parametrize("alone", [False, True], ids=["whole", "alone"])
def test_a_site_opens_it(alone: bool, own: Path) -> None:
    if alone:  # a site has its own folder, wherever and however it is called there
        moved = own.parent / "elsewhere"
        (own / "site-1").rename(moved)
        shutil.rmtree(own)
        assert open_site(moved) == open_site(moved, 1)
        folder = open_site(moved)
    else:
        folder = open_site(own, 1)
        assert folder == open_site(own / "site-1")
    assert (folder.name, folder.site, folder.sites, folder.port) == ("clinics", 1, 3, 9123)
    assert folder.address == "clinics.example.org"
    assert folder.policy().allow == {"parameters", "statistics", "metrics"}
    private, public = folder.keys()
    assert private.public_key() == public
    assert folder.ca.read_bytes().startswith(b"-----BEGIN CERTIFICATE")


def test_the_server_knows_each_site_by_its_key(made: Path) -> None:
    known = open_server(made).public_keys()
    assert sorted(known) == [0, 1, 2]
    assert len(set(known.values())) == 3
    for site, data in known.items():
        from cryptography.hazmat.primitives.serialization import load_pem_public_key

        assert load_pem_public_key(data) == open_site(made, site).keys()[1]


def test_flower_reads_the_keys(made: Path) -> None:
    """By its own functions: what a SuperNode starts with, what is registered, and a signature between them."""
    from argparse import Namespace

    from flwr.cli.supernode.register import try_load_public_key
    from flwr.supercore.primitives import asymmetric
    from flwr.supernode.cli.flower_supernode import _try_setup_client_authentication

    server = open_server(made)
    for site in range(3):
        folder = open_site(made, site)
        arguments = Namespace(auth_supernode_private_key=str(folder.key), auth_supernode_public_key=None)
        pair = _try_setup_client_authentication(arguments)
        assert pair is not None
        private, public = pair
        assert public == folder.keys()[1]
        registered = try_load_public_key(server.path / "sites" / f"{site}.pub")
        assert registered == asymmetric.public_key_to_bytes(public) == server.public_keys()[site]
        assert asymmetric.uses_nist_ec_curve(public)
        signature = asymmetric.sign_message(private, b"it is me")
        assert asymmetric.verify_signature(asymmetric.bytes_to_public_key(registered), b"it is me", signature)


def test_a_site_whose_key_was_taken_away_is_shut_out(own: Path) -> None:
    (own / "server/sites/1.pub").unlink()
    assert sorted(open_server(own).public_keys()) == [0, 2]
    shutil.rmtree(own / "server/sites")
    with pytest.raises(InputError, match="holds no public key of any site"):
        open_server(own).public_keys()


def test_the_page_is_one_page_and_complete(made: Path) -> None:
    page = (made / "README.md").read_text()
    assert len(page.splitlines()) < 75
    assert "$" not in page
    until = expiry(made / "server/server.crt")
    for part in (
        f"until **{until.day} {until:%B %Y}**",
        "sudo ufw allow 9123/tcp",
        "fedstill deploy server server fedavg",
        "fedstill deploy site site-2 --data npz:FILE",
        "`site-0/` … `site-2/`",
        "clinics.example.org",
        "policy.yaml",
        "never by\ne-mail",
    ):
        assert part in page, part


def test_one_site_reads_well(tmp_path: Path) -> None:
    make_deployment(tmp_path / "one", 1)
    page = (tmp_path / "one/README.md").read_text()
    assert "for one site and" in page
    assert "| `site-0/` |" in page
    with pytest.raises(InputError, match="there is site 0 only"):
        open_site(tmp_path / "one", 1)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"sites": 0}, "1 to 1,000 sites, not 0"),
        ({"sites": 1001}, "1 to 1,000 sites, not 1001"),
        ({"port": 0}, "there is no port 0: ports are 1 to 65535"),
        ({"port": 65536}, "ports are 1 to 65535"),
        ({"days": 0}, "1 to 3650 days, not 0"),
        ({"address": "0.0.0.0"}, "sites cannot call"),
        ({"address": "https://x"}, "is no address"),
    ],
)
def test_bad_wishes_leave_nothing(settings: dict[str, object], sentence: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=sentence):
        make_deployment(tmp_path / "new/er", **{"sites": 2, **settings})  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []


def test_folders_that_are_taken(own: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = {path: path.read_bytes() for path in own.rglob("*") if path.is_file()}
    with pytest.raises(InputError, match="holds a deployment already"):
        make_deployment(own, 2)
    assert before == {path: path.read_bytes() for path in own.rglob("*") if path.is_file()}
    (tmp_path / "file").write_text("mine")
    with pytest.raises(InputError, match="is a file"):
        make_deployment(tmp_path / "file", 2)
    with pytest.raises(InputError, match=r"cannot write to the folder .*file"):
        make_deployment(tmp_path / "file/below", 2)
    (tmp_path / "full").mkdir()
    (tmp_path / "full/note").write_text("mine")
    with pytest.raises(InputError, match="is not empty"):
        make_deployment(tmp_path / "full", 2)
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    with pytest.raises(InputError, match="you are in this folder"):
        make_deployment(Path(), 2)
    monkeypatch.chdir(tmp_path)
    make_deployment(Path("empty"), 2)
    assert open_server(Path("empty")).name == "empty"


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()], ids=["disk", "person"])
def test_nothing_half_made_is_left(error: BaseException, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Interrupted at the second of three sites, when most keys are written."""
    write, sites = create.write_private, []

    def fail(path: Path, data: bytes) -> None:
        if path.name == "site.key":
            sites.append(path)
            if len(sites) == 2:
                raise error
        write(path, data)

    monkeypatch.setattr(create, "write_private", fail)
    with pytest.raises(InputError if isinstance(error, OSError) else KeyboardInterrupt):
        make_deployment(tmp_path / "new", 3)
    assert len(sites) == 2
    assert list(tmp_path.iterdir()) == []


Damage = Callable[[Path], object]


def overwrite(name: str, text: str) -> Damage:
    return lambda path: (path / name).write_text(text)


def remove(name: str) -> Damage:
    return lambda path: (path / name).unlink()


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (remove("server/deployment.yaml"), "holds no deployment.yaml: name a server's folder"),
        (remove("server/ca.crt"), "ca.crt is missing: copy the folder again"),
        (remove("server/server.crt"), "server.crt is missing"),
        (remove("server/server.key"), "server.key is missing"),
        (lambda path: (path / "server/server.key").chmod(0o640), r"is readable by others: .* `chmod 600 .*server.key`"),
        (overwrite("server/deployment.yaml", "port: ["), "deployment.yaml cannot be read"),
        (overwrite("server/deployment.yaml", ""), "deployment.yaml holds no settings"),
        (
            overwrite("server/deployment.yaml", "name: a\naddress: b\nport: 1\nsites: 0"),
            "deployment.yaml: sites: input",
        ),
        (overwrite("server/deployment.yaml", "nam: a"), "deployment.yaml: name: field required"),
        (overwrite("server/sites/1.pub", "ssh-rsa AAAA"), "1.pub is no public key of a site"),
        (overwrite("server/server.crt", "nothing"), "server.crt is no certificate"),
    ],
)
def test_a_damaged_server_folder(damage: Damage, sentence: str, own: Path) -> None:
    damage(own)

    def start() -> None:
        folder = open_server(own)
        folder.check()
        folder.public_keys()

    with pytest.raises(InputError, match=sentence) as caught:
        start()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (remove("site-1/ca.crt"), "ca.crt is missing"),
        (remove("site-1/site.key"), "site.key is missing"),
        (lambda path: (path / "site-1/site.key").chmod(0o604), r"is readable by others: .* `chmod 600 .*site.key`"),
        (remove("site-1/policy.yaml"), "policy.yaml is missing: without a policy nothing leaves"),
        (
            overwrite("site-1/site.yaml", "name: a\naddress: b\nport: 1\nsites: 3\nsite: 3"),
            "site is 3, but sites are 0 to 2",
        ),
        (overwrite("site-1/site.yaml", "name: a\naddress: b\nport: 1\nsites: 3"), "site.yaml: site: field required"),
        (overwrite("site-1/site.key", "nothing"), "site.key is no private key as `fedstill deploy init` makes them"),
        (lambda path: shutil.copy(path / "server/server.key", path / "site-1/site.key"), "site.key is no private key"),
        (lambda path: shutil.rmtree(path / "site-1"), "no folder of site 1, which has been moved elsewhere"),
    ],
)
def test_a_damaged_site_folder(damage: Damage, sentence: str, own: Path) -> None:
    damage(own)

    def start() -> None:
        folder = open_site(own, 1)
        folder.keys()
        folder.policy()

    with pytest.raises(InputError, match=sentence) as caught:
        start()
    assert "\n" not in str(caught.value)


def test_which_site_is_meant(made: Path, tmp_path: Path) -> None:
    for site in (3, -1):
        with pytest.raises(InputError, match=f"no folder of site {site}: sites are 0 to 2"):
            open_site(made, site)
    with pytest.raises(InputError, match="holds the folders of 3 sites: say which is meant"):
        open_site(made, None)
    with pytest.raises(InputError, match="is the folder of site 1, not of site 2"):
        open_site(made / "site-1", 2)
    for path in (tmp_path, tmp_path / "nowhere", made / "server"):
        with pytest.raises(InputError, match=r"holds no site.yaml: name a site's folder"):
            open_site(path, 0)
    for path in (tmp_path, tmp_path / "nowhere", made / "site-0"):
        with pytest.raises(InputError, match=r"holds no deployment.yaml: name a server's folder"):
            open_server(path)


def test_a_new_certificate_needs_nothing_new_at_the_sites(own: Path) -> None:
    site, old = open_site(own, 0), open_server(own)
    before = {path: path.read_bytes() for path in (own / "site-0").iterdir()}
    first = old.certificate.read_bytes(), old.key.read_bytes()
    renew_certificate(own, days=30)
    new = open_server(own)
    new.check()
    assert mode(new.key) == 0o600
    assert new.certificate.read_bytes() != first[0]
    assert new.key.read_bytes() != first[1]
    assert expiry(new.certificate) - datetime.now(UTC) < timedelta(days=31)
    check_certificate(site.ca, new.certificate, site.address)
    assert before == {path: path.read_bytes() for path in (own / "site-0").iterdir()}


def test_a_server_that_moved(own: Path) -> None:
    """Its folder has gone to the server's machine; the authority's is enough."""
    shutil.rmtree(own / "server")
    renew_certificate(own, "10.1.2.3")
    folder = open_server(own)
    assert folder.address == "10.1.2.3"
    folder.check()
    assert read_tls_key(folder.key).key_size == 384
    with pytest.raises(InputError, match=r"made for localhost, 10.1.2.3, 127.0.0.1, not for clinics.example.org"):
        check_certificate(folder.ca, folder.certificate, "clinics.example.org")
    (own / "authority/ca.key").chmod(0o644)
    with pytest.raises(InputError, match=r"chmod 600 .*ca.key"):
        renew_certificate(own)
    shutil.rmtree(own / "authority")
    with pytest.raises(InputError, match=r"holds no authority/ca.key"):
        renew_certificate(own)
