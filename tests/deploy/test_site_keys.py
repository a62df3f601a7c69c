"""Keys at the server: revoked and replaced by files, while it runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedstill.core.errors import InputError
from fedstill.deploy import site_keys
from fedstill.deploy.keys import make_key, registered_bytes, site_public_bytes
from fedstill.deploy.site_keys import SiteKeys, public_key_file, revoke

PAIRS = [make_key() for _ in range(4)]
KEYS = [registered_bytes(pair.public_key()) for pair in PAIRS]


def write(folder: Path, site: int, number: int) -> None:
    public_key_file(folder, site).write_bytes(site_public_bytes(PAIRS[number].public_key(), "a"))


@pytest.fixture
def keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SiteKeys:
    monkeypatch.setattr(site_keys, "_EVERY", 0.0)
    folder = tmp_path / "sites"
    folder.mkdir()
    for site in (0, 1):
        write(folder, site, site)
    return SiteKeys({0: KEYS[0], 1: KEYS[1]}, folder)


def test_a_key_is_revoked_and_replaced_without_a_restart(keys: SiteKeys) -> None:
    assert keys.folder is not None
    assert (keys.site_of(KEYS[0]), keys.site_of(KEYS[1]), keys.site_of(KEYS[2])) == (0, 1, None)
    kept = revoke(keys.folder, 1)
    assert keys.site_of(KEYS[1]) is None
    assert keys.former(KEYS[1]) == 1
    assert len(list(kept.iterdir())) == 1
    write(keys.folder, 1, 2)
    assert (keys.site_of(KEYS[2]), keys.site_of(KEYS[1]), keys.site_of(KEYS[0])) == (1, None, 0)
    with pytest.raises(InputError, match="holds no key of site 7: there is nothing to revoke"):
        revoke(keys.folder, 7)


def test_both_keys_count_until_the_new_one_is_used(keys: SiteKeys) -> None:
    keys.propose(1, PAIRS[2].public_key())
    assert keys.site_of(KEYS[1]) == keys.site_of(KEYS[2]) == 1
    assert not keys.confirm(1, KEYS[1]), "the old one is used: nothing changes"
    again = SiteKeys({0: KEYS[0], 1: KEYS[1]}, keys.folder)  # a server that was killed and restarted
    assert again.site_of(KEYS[2]) == 1
    assert keys.confirm(1, KEYS[2])
    assert (keys.site_of(KEYS[1]), keys.site_of(KEYS[2]), keys.former(KEYS[1])) == (None, 1, 1)
    with pytest.raises(InputError, match="this key is, or was, used already"):
        keys.propose(1, PAIRS[1].public_key())


def test_a_second_site_with_the_same_key_is_refused(keys: SiteKeys, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(InputError, match="this key is, or was, used already"):
        keys.propose(1, PAIRS[0].public_key())
    assert keys.folder is not None
    write(keys.folder, 1, 0)
    assert keys.site_of(KEYS[1]) is None
    assert keys.site_of(KEYS[0]) == 0, "it stays the first site's"
    assert "the key of site 1 is that of site 0: it is not accepted" in caplog.text
    with pytest.raises(InputError, match="two sites have the same public key"):
        SiteKeys({0: KEYS[0], 1: KEYS[0]})


def test_a_damaged_file_is_no_key_and_harms_nobody_else(keys: SiteKeys, caplog: pytest.LogCaptureFixture) -> None:
    assert keys.folder is not None
    public_key_file(keys.folder, 1).write_text("nonsense")
    assert keys.site_of(KEYS[1]) is None
    assert keys.site_of(KEYS[0]) == 0
    assert "is no public key of a site" in caplog.text


def test_revoking_takes_the_next_key_with_it(keys: SiteKeys) -> None:
    keys.propose(1, PAIRS[3].public_key())
    assert keys.folder is not None
    revoke(keys.folder, 1)
    assert keys.site_of(KEYS[3]) is None
    assert keys.site_of(KEYS[1]) is None
