"""Sealed regions: keys, refusals, and blocks that are only copied out."""

from pathlib import Path

import pytest
from test_device import BLOCK, LAYERS, Engine, content, names_of, save_step
from waiting import PATIENCE

import cenote
from conftest import SMALL

PAGE = 4096


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    path = tmp_path / "key"
    path.write_text("0123456789abcdef" * 4)
    path.chmod(0o600)
    return path


def test_a_sealed_region_needs_its_key(name: str, key_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="seal_key_file"):
        cenote.Region.create(name, "8MiB", **SMALL, seal="mac")
    with pytest.raises(ValueError, match="none, mac or encrypt"):
        cenote.Region.create(name, "8MiB", **SMALL, seal="aes", seal_key_file=key_file)
    with pytest.raises(ValueError, match="a key is given"):
        cenote.Region.create(name, "8MiB", **SMALL, seal_key_file=key_file)
    cenote.Region.create(name, "8MiB", **SMALL, seal="mac", seal_key_file=key_file)
    assert cenote.Region.create(name, "8MiB", **SMALL, seal_key_file=key_file, exist_ok=True) == []
    with pytest.raises(cenote.CenoteError, match="is sealed"):
        cenote.Region.open(name)
    other = key_file.with_name("other")
    other.write_text("f0123456789abcde" * 4)
    other.chmod(0o600)
    with pytest.raises(cenote.CenoteError, match="cenote pool rotate"):
        cenote.Region.open(name, seal_key_file=other)
    key_file.chmod(0o644)
    with pytest.raises(cenote.CenoteError, match="every user can read"):
        cenote.Region.open(name, seal_key_file=key_file)
    key_file.chmod(0o600)
    monkeypatch.setenv("CENOTE_SEAL_KEY_FILE", str(key_file))
    with cenote.Region.open(name, seal="mac") as region:
        assert region.info()["seal"] == "mac"
    with pytest.raises(cenote.CenoteError, match="seal is encrypt, and the region has mac"):
        cenote.Region.open(name, seal="encrypt")


def test_a_key_for_an_unsealed_region_is_refused(name: str, key_file: Path) -> None:
    cenote.Region.create(name, "8MiB", **SMALL)
    with pytest.raises(cenote.CenoteError, match="not sealed"):
        cenote.Region.open(name, seal_key_file=key_file)
    with pytest.raises(cenote.CenoteError, match="seal is mac, and the region has none"):
        cenote.Region.open(name, seal="mac")


@pytest.mark.parametrize("seal", ["mac", "encrypt"])
def test_blocks_come_back_and_have_no_views(name: str, key_file: Path, seal: str) -> None:
    cenote.Region.create(name, "8MiB", **SMALL, seal=seal, seal_key_file=key_file)
    payload = bytes(range(256)) * (PAGE // 256)
    with cenote.Region.open(name, seal_key_file=key_file) as region:
        blocks = region.namespace(b"model", PAGE)
        names = blocks.hash_tokens(list(range(32)), 16)
        assert blocks.publish(names[0], 0, payload) == "published"
        with blocks.lookup(names) as lease:
            back = bytearray(PAGE)
            assert lease.read_into(0, back)
            assert back == payload
            assert lease.view(0) is None
    raw = Path("/dev/shm", name.removeprefix("shm:")).read_bytes()
    assert (payload in raw) == (seal == "mac")


@pytest.mark.parametrize("seal", ["mac", "encrypt"])
def test_a_device_gets_the_blocks_of_a_sealed_region(name: str, key_file: Path, seal: str) -> None:
    cenote.Region.create(name, "8MiB", **SMALL, seal=seal, seal_key_file=key_file)
    with cenote.Region.open(name, seal_key_file=key_file) as region:
        engine = Engine(region)
        assert engine.memory.why_staged == "the region is sealed"
        blocks = region.namespace(b"model", BLOCK)
        names, save = save_step(engine, blocks, 4, [3, 1, 4, 9])
        assert engine.outcomes(save) == {"published": 4}
        assert names == names_of(blocks, 4)
        load = engine.memory.load(blocks.lookup(names), [20, 21, 22, 23])
        assert load.wait(PATIENCE)
        assert load.failed() == []
        engine.device.run()
        for layer in range(LAYERS):
            for number in range(4):
                assert engine.page(layer, 20 + number) == content(layer, number)
        engine.close()
