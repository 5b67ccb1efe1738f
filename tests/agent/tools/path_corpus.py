"""Known tricks to leave a folder: paths, and prepared folders.

The sources are reports about file tools of agents and about web servers. `{outside}` is the folder next to the
workspace, which must not be accessible.
"""

import errno
import os
import shutil
import socket
from collections.abc import Callable
from pathlib import Path

PATHS: tuple[tuple[str, str], ...] = (
    # plain traversal (DesktopCommanderMCP 403, agent-governance-toolkit 178, taOS 1465)
    ("dots", "../secret.txt"),
    ("dots deep", "../../../../../../../../etc/passwd"),
    ("dots to another chat", "../8/secret.txt"),
    ("dots in the middle", "notes/../../secret.txt"),
    ("dots after a folder that is not there", "nothing/../../secret.txt"),
    ("dots at the end", "notes/.."),
    ("only dots", ".."),
    ("prefix of a sibling (SuperAgent 209)", "../7-victim/secret.txt"),
    ("mount and dots", "/workspace/../secret.txt"),
    ("mount, sibling prefix", "/workspace-victim/secret.txt"),
    ("mount, twice", "/workspace//workspace/../../secret.txt"),
    ("mount in capitals", "/WORKSPACE/../secret.txt"),
    ("doubled dots (a filter that removes ../ once)", "....//....//secret.txt"),
    ("doubled dots, slash inside", "..././..././secret.txt"),
    ("dot segments", "./.././secret.txt"),
    ("slashes", "..////secret.txt"),
    # absolute (mcp-local-file-reader 3, code-mcp 4)
    ("absolute", "/etc/passwd"),
    ("absolute, our own", "{outside}/secret.txt"),
    ("two slashes", "//etc/passwd"),
    ("home", "~/.ssh/id_rsa"),
    ("home of a user", "~root/.bashrc"),
    ("variable", "$HOME/secret.txt"),
    ("variable in braces", "${{HOME}}/secret.txt"),
    ("address", "file:///etc/passwd"),
    ("address of ours", "file://{outside}/secret.txt"),
    # through /proc and /dev
    ("root of the process", "/proc/self/root{outside}/secret.txt"),
    ("folder of the process", "/proc/self/cwd/../secret.txt"),
    ("handles of the process", "/proc/self/fd/3"),
    ("environment", "/proc/self/environ"),
    ("device", "/dev/stdin"),
    ("endless device", "/dev/zero"),
    # encodings (OWASP, CAPEC-64, Struts CVE-2017-9805, IIS)
    ("per cent", "%2e%2e/secret.txt"),
    ("per cent, slash too", "%2e%2e%2fsecret.txt"),
    ("per cent, twice", "%252e%252e%252fsecret.txt"),
    ("overlong", "%c0%ae%c0%ae%c0%afsecret.txt"),
    ("sixteen bits", "%u002e%u002e%u2215secret.txt"),
    ("full width", "\uff0e\uff0e\uff0fsecret.txt"),
    ("full width dots", "\uff0e\uff0e/secret.txt"),
    ("one-dot leader", "\u2024\u2024/secret.txt"),
    ("two-dot leader", "\u2025/secret.txt"),
    ("division slash", "..\u2215secret.txt"),
    ("fraction slash", "..\u2044secret.txt"),
    ("semicolon (Tomcat)", "..;/secret.txt"),
    ("question mark", "notes?/../../secret.txt"),
    ("hash", "notes#/../../secret.txt"),
    # Windows (chatgpt-cli 178)
    ("backslash", "..\\secret.txt"),
    ("backslash, mixed", "..\\/..\\/secret.txt"),
    ("drive", "C:\\Windows\\win.ini"),
    ("server", "\\\\server\\share\\secret.txt"),
    ("long path", "\\\\?\\C:\\secret.txt"),
    ("stream", "note.txt::$DATA"),
    ("device name", "CON"),
    # characters that end or hide a name
    ("NUL", "../secret.txt\0.md"),
    ("NUL behind", "note.txt\0../../secret.txt"),
    ("line end", "..\n/secret.txt"),
    ("line end in front", "\n../secret.txt"),
    ("space in front", " ../secret.txt"),
    ("space behind", ".. /secret.txt"),
    ("tab", "..\t/secret.txt"),
    ("no shape", "\u200b../secret.txt"),
    ("no shape between", ".\u200b./secret.txt"),
    ("right to left", "\u202e../secret.txt"),
    ("byte order mark", "\ufeff../secret.txt"),
    ("joiner", ".\u200d./secret.txt"),
    ("soft hyphen", "..\u00ad/secret.txt"),
    ("bell", "\x07../secret.txt"),
    ("name of 255 bytes", "n" * 255),
    ("name of 256 bytes", "n" * 256),
    ("name of 300 characters of four bytes", "\U0001f600" * 300),
    ("1,000 folders", "a/" * 1_000 + "secret.txt"),
    ("1,000 times up", "../" * 1_000 + "etc/passwd"),
    ("100,000 characters", "a" * 100_000),
    ("empty", ""),
    ("dot", "."),
    ("slash", "/"),
    ("mount alone", "/workspace"),
    ("option", "--pre=sh"),
    ("option with a file", "-f../secret.txt"),
    ("option of a folder", "--files-from=../secret.txt"),
    ("shell", "$(cat ../secret.txt)"),
    ("glob", "../*"),
    ("braces", "{{..,notes}}/secret.txt"),
    # prepared files and links in the folder, see `FOLDERS`
    ("link to a file", "link.txt"),
    ("link to a folder", "linked/secret.txt"),
    ("link to a folder, new file (DesktopCommanderMCP 420)", "linked/new.txt"),
    ("link to nothing (goclaw 1201, agents-api 474)", "dangling.txt"),
    ("link to a folder that is not there", "dangling/new.txt"),
    ("link upwards", "up/secret.txt"),
    ("link to the root", "root/etc/passwd"),
    ("link to a link", "chain.txt"),
    ("link inside a folder (AutoAgents 272)", "notes/link.txt"),
    ("link to /proc", "proc/self/environ"),
    ("link to itself", "loop"),
    ("hard link", "hard.txt"),
    ("pipe", "pipe"),
    ("socket", "socket"),
    ("folder as a file", "notes"),
    ("file as a folder", "note.txt/secret.txt"),
    ("case of a link", "LINK.txt"),
    ("case of a linked folder", "Linked/secret.txt"),
)
"""Return the names of the tricks and their paths."""


def prepare_folder(workspace: Path, outside: Path) -> None:
    """Prepare a workspace as a program in the terminal, or a user of the machine, could do."""
    (workspace / "notes").mkdir(parents=True)
    (workspace / "note.txt").write_text("a note of ours\n")
    links: dict[str, str | Path] = {
        "link.txt": outside / "secret.txt",
        "linked": outside,
        "dangling.txt": outside / "made.txt",
        "dangling": outside / "made",
        "up": "..",
        "root": "/",
        "chain.txt": "link.txt",
        "notes/link.txt": "../../../outside/secret.txt",
        "proc": "/proc",
        "loop": "loop",
    }
    for name, target in links.items():
        (workspace / name).symlink_to(target)
    (workspace / "hard.txt").hardlink_to(outside / "secret.txt")
    os.mkfifo(workspace / "pipe")
    with socket.socket(socket.AF_UNIX) as listener:
        here = os.getcwd()
        os.chdir(workspace)  # because socket addresses are short
        try:
            listener.bind("socket")
        finally:
            os.chdir(here)


Swap = Callable[[], None]


def swapper(workspace: Path, outside: Path) -> Swap:
    """Attacker that replaces a folder and a file by links to outside and back, once per call."""
    folder, target, aside = workspace / "swapped", workspace / "swapped.link", workspace / "swapped.aside"
    folder.mkdir()
    (folder / "secret.txt").write_text("a decoy\n")
    target.symlink_to(outside)
    file, link, kept = workspace / "file.txt", workspace / "file.link", workspace / "file.aside"
    file.write_text("a decoy\n")
    link.symlink_to(outside / "secret.txt")

    def swap() -> None:
        for place, other, between in ((folder, target, aside), (file, link, kept)):
            for old, new in ((place, between), (other, place), (place, other), (between, place)):
                _move(old, new)

    return swap


def _move(old: Path, new: Path) -> None:
    """Rename, even if a tool has created something at the new place."""
    while True:
        try:
            old.rename(new)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.EISDIR):
                raise
            shutil.rmtree(new, ignore_errors=True)  # a tool may be writing there
        else:
            return
