"""Summaries without a model: sentences of the prompt, sorted under the headings that the prompt requires.

Facts, numbers, paths and lines about the focus topic are kept, so a test's fact is in the summary only if it was in the
prompt.
"""

import re

SUMMARY_REGEX = r"(?is)\b(summar(?:y|i[sz]e|i[sz]ing)|compact(?:ion)?|condense|hand-?off)\b"
"""Pattern that every request for a summary contains."""
HEADING = re.compile(r"^(#{2,4})\s+(.+?)\s*$", re.MULTILINE)

_FACT = re.compile(
    r"(?i)\b(fact|remember|needle|important|must|never|always|secret|code word|password|key)\b"
    r"|[A-Z]{2,}-\d+|\b\w*\d\w*[-_]\w+|\w+=\S+"
)
_PATH = re.compile(
    r"(?:(?<=\s)|^|(?<=[`'\"(]))(?:/|\./|~/)?[\w.-]+(?:/[\w.-]+)+"
    r"|\b[\w-]+\.(?:py|md|txt|json|ya?ml|toml|sql|sh|js|ts|log|db)\b"
)
_FOCUS = re.compile(r"(?i)focus(?:\s+topic)?[^\n:\"'“]*[:\"'“]\s*[\"'“]?([^\n\"'”]+)")
_CUES = {
    "goal": r"\b(goal|want|need|please|build|fix|help|task)\b",
    "constraint": r"\b(must|never|always|prefer|don't|do not|only)\b",
    "done": r"\b(done|finished|completed|created|wrote|ran|fixed|passed)\b",
    "progress": r"\b(working on|in progress|currently|next)\b",
    "block": r"\b(block|error|fail|exception|cannot|can't)\b",
    "decision": r"\b(decid|chose|choose|use|because|agreed)\w*",
    "next": r"\b(next|todo|then|plan|will|remaining)\b",
    "error": r"\b(error|fail|exception)\b",
}
_ORDER = ("goal", "constraint", "done", "progress", "block", "decision", "file", "next", "critical", "fact", "error")


def summarize(prompt: str) -> str:
    """Return the summary that `prompt` asks for, with its headings in the same order."""
    headings = _headings(prompt)
    body = _sentences(prompt)
    picks = {name: [line for line in body if re.search(cue, line, re.IGNORECASE)] for name, cue in _CUES.items()}
    facts = [line for line in body if _FACT.search(line)]
    picks |= {"critical": facts, "fact": facts}
    picks["file"] = list(dict.fromkeys(found[0] for line in body for found in _PATH.finditer(line)))
    focus = _FOCUS.search(prompt)
    hot_words: list[str] = re.findall(r"\w{3,}", focus[1].lower()) if focus else []
    out: list[str] = []
    for n, (level, title) in enumerate(headings):
        key = next((name for name in _ORDER if name in title.lower()), None)
        has_children = n + 1 < len(headings) and len(headings[n + 1][0]) > len(level)
        lines = _ranked(picks[key] if key else body, hot_words)[: 40 if key in ("critical", "fact") else 8]
        out.append(f"{level} {title}")
        if not has_children or (lines and key and key != "progress"):
            out += [f"- {line[:400]}" for line in lines] or ["- (none)"]
        out.append("")
    return "\n".join(out).strip() or "- (none)"


def _headings(prompt: str) -> list[tuple[str, str]]:
    """Return the level and title of each heading, in order of first use."""
    found: dict[str, tuple[str, str]] = {}
    for level, title in HEADING.findall(prompt):
        found.setdefault(title.lower(), (level, title))
    return list(found.values())


def _sentences(prompt: str) -> list[str]:
    """Return the lines and sentences, without parts of the template such as headings and [placeholders]."""
    pieces = (piece.strip(" \t-*•|") for piece in re.split(r"\n|(?<=[.!?])\s+", prompt))
    return [
        piece
        for piece in pieces
        if piece
        and not piece.startswith("#")
        and not re.fullmatch(r"\[.*\]|<.*>", piece, re.DOTALL)
        and len(piece) < 2_000
    ]


def _ranked(lines: list[str], hot_words: list[str]) -> list[str]:
    hot = [line for line in lines if any(word in line.lower() for word in hot_words)]
    return list(dict.fromkeys(hot + lines))
