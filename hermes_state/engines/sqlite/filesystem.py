"""Network file systems are refused: SQLite cannot trust the locks of a disk that another machine serves."""

from pathlib import Path

from hermes_state.errors import ConfigError

NETWORK_KINDS = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "smbfs", "afs", "ncpfs", "davfs", "fuse.sshfs", "fuse.rclone", "fuse.davfs2"}
)
MOUNTS = Path("/proc/self/mountinfo")


def refuse_network_disk(path: Path, mounts: Path = MOUNTS) -> None:
    """Raise `ConfigError` when `path` lies on a network file system; says nothing where there is no mount table."""
    try:
        table = mounts.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return
    kind = _kind_of(path.resolve(), table)
    if kind in NETWORK_KINDS:
        raise ConfigError(
            f"{path} lies on a network file system ({kind}), whose locks a database cannot rely on: "
            "set HERMES_HOME to a folder on a local disk"
        )


def _kind_of(path: Path, table: str) -> str:
    """The file system of the deepest mount point above `path`; of two on the same point, the later one."""
    found, depth = "", -1
    for line in table.splitlines():
        fields = line.split(" ")
        mount = Path(fields[4].replace("\\040", " "))
        if len(mount.parts) >= depth and path.is_relative_to(mount):
            found, depth = fields[fields.index("-") + 1], len(mount.parts)
    return found
