from pathlib import Path

import pytest

from hermes_state.engines.sqlite.connections import refuse_network_disk
from hermes_state.errors import ConfigError

TABLE = """\
21 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
30 21 0:45 / /srv/team\\040files rw,relatime - nfs4 nas:/files rw
31 30 8:2 / /srv/team\\040files/local rw,relatime - xfs /dev/sdb1 rw
"""


@pytest.fixture
def mounts(tmp_path: Path) -> Path:
    table = tmp_path / "mountinfo"
    table.write_text(TABLE)
    return table


def test_a_network_disk_is_refused_and_named(mounts: Path) -> None:
    with pytest.raises(ConfigError, match="nfs4"):
        refuse_network_disk(Path("/srv/team files/home/state.db"), mounts)


@pytest.mark.parametrize("path", ["/home/ada/state.db", "/srv/team files/local/state.db", "/srv/team/state.db"])
def test_a_local_disk_is_accepted(mounts: Path, path: str) -> None:
    refuse_network_disk(Path(path), mounts)


def test_a_missing_mount_table_is_accepted(tmp_path: Path) -> None:
    refuse_network_disk(tmp_path / "state.db", tmp_path / "missing")
