"""Attachment files, named after the hash of their content. Their rows are in `hermes_state.attachments`.

    files = open_files(url, options, cache)     # a folder, or an object store with a folder as its cache
    fetched = files.new_file()
    fetched.write_bytes(data)
    stored = files.keep(fetched, "plan.md", "text/markdown")
    files.read(stored.path)

Every call blocks and may raise `OSError`. `FileNotFoundError` means that the file is no longer stored.
"""

import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated
from urllib.parse import unquote, urlsplit

from hermes_state.errors import ConfigError
from hermes_state.files.folder import AttachmentFolder
from hermes_state.setting_types import FilesUrl, Options, plain_texts
from hermes_state.settings import Setting

__all__ = ["AttachmentFolder", "AttachmentSettings", "missing_client", "open_files"]


@dataclass(frozen=True, kw_only=True)
class AttachmentSettings:
    """Files that people and the agent send."""

    url: Annotated[FilesUrl | None, Setting(default_text="`attachments/` in the state directory", restart=True)] = None
    """Address of the storage for attachments: `s3://bucket/folder`, `gs://…`, `az://…` or `file:///mnt/shared`."""
    options: Annotated[Options, Setting(default_text="none", restart=True)] = field(default_factory=dict, hash=False)
    """Options for the object store, such as `endpoint`, `region`, `access_key_id` and `secret_access_key`."""
    max_bytes: Annotated[int, Setting(ge=1 << 10, le=1 << 31, unit="bytes", restart=True)] = 20 << 20
    """Maximum size of a file downloaded from a chat."""
    total_bytes: Annotated[int, Setting(ge=1 << 20, le=10 << 40, unit="bytes")] = 2 << 30
    """Maximum total size of stored files. Above this size, the gateway deletes the oldest files."""

    @property
    def plain_options(self) -> dict[str, str]:
        return plain_texts(self.options)


def missing_client(url: str | None) -> str | None:
    """Return a hint on how to install the client for `url`, or None if it is installed. Does not import the client."""
    if url is None or url.startswith("file:") or importlib.util.find_spec("obstore") is not None:
        return None
    return (
        "attachments.url needs a client for object stores, which is not installed: run `make cluster` in a clone, or "
        "`pip install 'hermes-gateway[cluster]'` for an installed package"
    )


def open_files(url: str, options: Mapping[str, str], cache: Path) -> AttachmentFolder:
    """Open the attachment storage at `url` and test writing. `cache` is the local cache for an object store.

    Blocks. Raises `ConfigError` for an unusable address, and `StoreUnavailable` for a temporary failure.
    """
    if url.startswith("file:"):
        folder = Path(unquote(urlsplit(url).path))
        files = AttachmentFolder(folder)
        try:
            if not folder.is_dir():  # creating it would hide that a disk is not mounted
                raise ConfigError(f"attachments.url: {folder} is not a folder: create it, or mount its disk")
            files.new_file().unlink()
        except OSError as error:
            raise ConfigError(f"attachments.url: {folder} is not writable: {error.strerror or error}") from error
        return files
    if (missing := missing_client(url)) is not None:
        raise ConfigError(missing)
    from hermes_state.files.bucket import open_bucket

    return open_bucket(url, options, cache)
