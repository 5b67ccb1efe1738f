"""List the sentences that users and operators can read: `make texts` shows them by place, with file and line.

Sources are the product's string literals, help texts, setting descriptions, page templates and their script. Literals
that only the program reads are left out: code, SQL, JSON, patterns, identifiers, messages about programming mistakes. A
value that the program fills in is shown as `…`. `ARGS=--faults` lists only sentences that break a rule of this module.
"""

import argparse
import ast
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import groupby

from bench.source import ROOT, Module, product

MAX_WORDS = 25
"""Maximum number of words in a sentence."""
HABITS = {
    "a clause instead of a noun": r"\b[Ww](?:hoever|homever|hatever)\b|^(?:[Ww]ho|[Ww]hat|[Ww]hether) (?!.*\?)",
    "a participle before its subject": r"^(?:Refused|Understood|Kept|Known|Meant|Shown|Allowed|Told) (?:is|are)\b",
    "bookish words": r"\b(?:anew|beside|nobody(?! typed)|thereof|of which|behind (?:it|them)|as it was said)\b",
    "for instead of because": r", for (?:it|they|he|she|there|nobody|no|this) (?:\w+ ){0,3}(?:is|was|has|does|says)\b",
    "to be instead of must": r"\b(?:is|are|was) to be \w+ed\b|\b(?:has|have) to be\b",
    "nothing that could be": r"\b[Nn]o(?:thing)? (?:\w+ )?(?:that|which) could be\b",
    "told instead of receives": r"\b(?:is|are|was|were) told\b",
    "figures of speech": r"\b(?:rests|signs? of life|at work|takes nothing|let in by)\b",
}
"""Kinds of sentences that are hard to read, each with the expression that finds them."""

_LOGGERS = frozenset({"log", "_log", "logger"})
_COMPARING = frozenset({"count", "endswith", "get", "removeprefix", "removesuffix", "split", "startswith"})
"""String methods whose arguments are compared or looked up, and never shown."""
_INTERNAL = re.compile(r"^(?:AssertionError|TypeError)$|(?:Inbox|Turn|Account|Lineage)Moved$")
"""Errors that report a programming mistake, or a change in the database that the caller handles."""
_FOR_MODELS = re.compile(
    r"^agent/(?:prompt|handoff|context|memory|images|engines|tools|turn|model/(?:messages|wire))|^gateway/turns/prompt"
)
_SQL = re.compile(
    r"\b(?:SELECT|INSERT|DELETE FROM|FROM|WHERE|VALUES|PRAGMA|BEGIN|CREATE|ALTER|ORDER BY|ON CONFLICT|LIMIT)\b"
    r"|\b(?:SET|AS) [a-z]|\bAND \(?[a-z]|\bIN \(|\bCASE |\bOR [a-z_]+\(|\bROLLBACK\b|\bIS NULL\b|\bNOT …$"
    r"|\b[a-z_]+ = (?:\?|NULL\b|'|[a-z_]+ [+-] )|^[\w…]+(?:, [\w…]+)*, [a-z]+_\w+$"
)
_NOT_PROSE = re.compile(
    r"\b(?:SELECT|INSERT INTO|UPDATE \w+ SET|DELETE FROM|CREATE|ALTER|DROP|PRAGMA|WHERE|JOIN|VACUUM|REINDEX)\b"
    r"|\(\?|\\[bswdA]|\[\^|^[-\w]+(?: [-\w]+)*=|^\W+$"
    r"|\"\$[@\w]|\w-src '|<div\b|;q=0|^Mozilla/|^[{\"].*\"\w+\": |(?: --[a-z-]+ .*){3}"
    r"|^(?!.* (?:and|does|has|must) )(?=(?:.*\w[._]\w){2})[\w.]+(?: [\w.]+)*$"
)
"""Marks of SQL, patterns, shell commands, headers, HTML and JSON, and lists of identifiers."""
_WORD = re.compile(r"[A-Za-z][\w'-]*")
_SENTENCE_END = re.compile(r"(?<=[.!?…])[*_\"”)]*\s+(?=[A-Z`“(…])|\n+|(?<=[.!?])\s*<br>")
_TAG = re.compile(r"<[^>]*>|\{[%#].*?[%#]\}", re.DOTALL)
_SHOWN_ATTRIBUTE = re.compile(r'\b(?:aria-label|placeholder|title|alt)="([^"{]+)"')


@dataclass(frozen=True, slots=True, order=True)
class Sentence:
    """One sentence and its location in the product."""

    place: str
    path: str
    line: int
    text: str


def faults(text: str) -> list[str]:
    """Return the rules that a sentence breaks. Empty for a good sentence."""
    count = len(_WORD.findall(re.sub(r"`[^`]*`|https?://\S+", "x", text)))
    found = [f"{count} words"] if count > MAX_WORDS else []
    return found + [name for name, pattern in HABITS.items() if re.search(pattern, text)]


def sentences_of(text: str) -> Iterator[str]:
    """Return the sentences in `text` that have at least three words, so labels and single words are left out."""
    for part in _SENTENCE_END.split(text):
        sentence = " ".join(part.split())
        words = [found[0] for word in sentence.split(" ") if (found := _WORD.match(word.lstrip('“"`*(…')))]
        if len(words) >= 3 and any(len(word) > 1 for word in words) and not _NOT_PROSE.search(sentence):
            yield sentence


@cache
def all_sentences() -> tuple[Sentence, ...]:
    """Return every sentence of the product, sorted by place, file and line."""
    found = [sentence for module in product() for sentence in texts_of(module)]
    found += _settings()
    for page in sorted((ROOT / "platforms/local").glob("**/*")):
        if page.suffix in {".html", ".js"} and ".min." not in page.name:
            found += _of_page(str(page.relative_to(ROOT)), page.read_text("utf-8"))
    return tuple(sorted(set(found)))


def texts_of(module: Module) -> Iterator[Sentence]:
    """Return the sentences in a module's literals and in the help texts of its commands."""
    unseen = {id(child) for node in module.nodes for child in _unseen_children(node)}
    raised = {id(child) for node in module.nodes if isinstance(node, ast.Raise) for child in ast.walk(node)}
    for node in module.nodes:
        if id(node) not in unseen and (text := _literal(node)) and not _SQL.search(text) and not _is_code(text):
            place = _place(module.path, is_raised=id(node) in raised)
            yield from (Sentence(place, module.path, node.lineno, found) for found in sentences_of(text))  # type: ignore[attr-defined]
        elif isinstance(node, ast.FunctionDef) and _is_command(node):
            for found in sentences_of(ast.get_docstring(node) or ""):
                yield Sentence("command line", module.path, node.lineno, found)


def _unseen_children(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes inside `node` whose strings users do not read as sentences."""
    match node:
        case ast.Expr(value=ast.Constant() as docstring):
            yield docstring
        case ast.JoinedStr():
            yield from (child for child in ast.walk(node) if child is not node)
        case ast.Assert(msg=ast.expr() as message):
            yield from ast.walk(message)
        case ast.Raise(exc=ast.Call(func=raised)) if _INTERNAL.search(ast.unparse(raised)):
            yield from ast.walk(node)
        case ast.Compare():
            yield from (child for part in [node.left, *node.comparators] for child in _constants(part))
        case ast.Tuple(elts=[_, _, _, *_]) if any(_is_identifier(_literal(part)) for part in node.elts):
            yield from node.elts  # phrases that are compared, next to the names of errors
        case ast.Call() if _is_unseen(node):
            yield from ast.walk(node)
        case ast.Call(func=ast.Attribute(value=text, attr=name)) if name in _COMPARING:
            yield from (child for part in [text, *node.args[:1]] for child in _constants(part))


def _constants(node: ast.AST) -> Iterator[ast.AST]:
    """Yield `node`, or the elements of a tuple, list or set."""
    yield from getattr(node, "elts", [node])


def _is_identifier(text: str) -> bool:
    return "_" in text.strip("_") and text.isidentifier()


def _is_code(text: str) -> bool:
    """True for Python source and types, such as `tuple[str, int] | None`. A phrase such as `a or b` is not code."""
    try:
        nodes = ast.walk(ast.parse(text))
    except (SyntaxError, ValueError):
        return False
    return any(isinstance(node, ast.Import | ast.Assign | ast.Call | ast.Subscript | ast.BinOp) for node in nodes)


def _literal(node: ast.AST) -> str:
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else ""
    if isinstance(node, ast.JoinedStr):
        return "".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in node.values)
    return ""


def _is_unseen(call: ast.Call) -> bool:
    """True for log calls, patterns, JSON, types and declared locks."""
    match call.func:
        case ast.Name(id=name):
            return name in {"cast", "locks"}
        case ast.Attribute(value=ast.Name(id=name), attr=method):
            return name in _LOGGERS or name == "re" or method == "loads"
        case ast.Attribute(value=ast.Attribute(attr=name)):
            return name in _LOGGERS
    return False


def _is_command(node: ast.FunctionDef) -> bool:
    return any(
        ".command" in ast.unparse(decorator) or ".callback" in ast.unparse(decorator)
        for decorator in node.decorator_list
    )


def _place(path: str, *, is_raised: bool) -> str:
    if path.startswith("gateway/cli/"):
        return "command line"
    if is_raised or path.endswith("errors.py"):
        return "errors"
    if path.startswith("gateway/operator/"):
        return "operators"
    if path.startswith("platforms/local/"):
        return "web pages"
    return "models" if _FOR_MODELS.search(path) else "chats"


def _settings() -> Iterator[Sentence]:
    from gateway.config.docs import describe_settings

    for row in describe_settings():
        yield from (Sentence("settings", row.key, 0, found) for found in sentences_of(row.text))


def _of_page(path: str, text: str) -> Iterator[Sentence]:
    pattern = r">([^<>{}]+)<" if path.endswith(".html") else r"[\"`]([A-Z][^\"`\n]*)[\"`]"
    blank = _TAG.sub(lambda found: "<" + "\n" * found[0].count("\n") + ">", text) if path.endswith(".html") else text
    for found in [*re.finditer(pattern, blank), *_SHOWN_ATTRIBUTE.finditer(text)]:
        line = text.count("\n", 0, found.start()) + 1
        shown = re.sub(r"\$?\{+[^}]*\}+", "…", found[1])
        yield from (Sentence("web pages", path, line, sentence) for sentence in sentences_of(shown))


def lines(found: Iterable[Sentence], *, only_faults: bool) -> Iterator[str]:
    """Return the list for people: a heading for each place, then file, line and sentence."""
    for place, group in groupby(found, key=lambda sentence: sentence.place):
        shown = [(sentence, faults(sentence.text)) for sentence in group]
        shown = [pair for pair in shown if pair[1] or not only_faults]
        yield f"\n== {place}: {len(shown)} sentences\n"
        for sentence, broken in shown:
            where = f"{sentence.path}:{sentence.line}" if sentence.line else sentence.path
            yield f"{where}: {sentence.text}" + (f"  [{', '.join(broken)}]" if broken else "")


def main() -> None:
    """Print the list."""
    parser = argparse.ArgumentParser(prog="make texts", description=__doc__.partition("\n")[0])
    parser.add_argument("--faults", action="store_true", help="list only sentences that break a rule")
    parser.add_argument("--place", help="list one place, such as chats")
    asked = parser.parse_args()
    chosen = [sentence for sentence in all_sentences() if asked.place in {None, sentence.place}]
    print("\n".join(lines(chosen, only_faults=asked.faults)).strip())


if __name__ == "__main__":
    main()
