"""Colours in code: parts of the code get one of ten classes, which `code.css` colours in both themes."""

import re
from functools import lru_cache

from markupsafe import Markup, escape

MAX_CHARACTERS = 10_000
"""Longer code has no colours, because a preview is rendered again several times per second."""
_MAX_LINE = 1_000
_LANGUAGES = re.compile(
    r"bash|c|c\+\+|clojure|cmake|console|cpp|cs|csharp|css|dart|diff|docker|dockerfile|elixir|"
    r"erlang|go|golang|graphql|groovy|haskell|hcl|html|ini|java|javascript|js|json|jsx|julia|"
    r"kotlin|latex|lua|make|makefile|markdown|md|nginx|nix|objective-c|ocaml|perl|php|postgresql|"
    r"powershell|proto|protobuf|ps1|py|python|python3|r|rb|rs|ruby|rust|scala|scss|sh|shell|"
    r"sql|sqlite|swift|terraform|tex|toml|ts|tsx|typescript|vim|xml|yaml|yml|zig|zsh"
)
"""Languages with colours. Other lexers are not used, because the regular expressions of some take very long."""
_CLASSES = {
    "Comment": "comment",
    "Comment.Preproc": "mark",
    "Keyword": "keyword",
    "Keyword.Constant": "number",
    "Keyword.Type": "type",
    "Operator.Word": "keyword",
    "Name.Attribute": "mark",
    "Name.Builtin": "type",
    "Name.Class": "name",
    "Name.Decorator": "mark",
    "Name.Exception": "type",
    "Name.Function": "name",
    "Name.Tag": "keyword",
    "Literal.String": "string",
    "Literal.Number": "number",
    "Generic.Deleted": "deleted",
    "Generic.Inserted": "inserted",
    "Generic.Heading": "name",
    "Generic.Subheading": "name",
}
"""Classes by token type, also for more specific types."""


@lru_cache(maxsize=64)  # while an answer grows, only its last code block changes
def colour(code: str, language: str) -> Markup:
    """Return `code` as HTML, with colours if its language is known and it is not too long."""
    language = language.lower()
    if not _LANGUAGES.fullmatch(language) or len(code) > MAX_CHARACTERS or max(map(len, code.split("\n"))) > _MAX_LINE:
        return escape(code)
    from pygments.lexers import get_lexer_by_name  # imported when needed, which takes 35 ms and 2 MB

    pieces: list[tuple[str | None, str]] = []
    for kind, text in get_lexer_by_name(language, stripnl=False, ensurenl=False).get_tokens(code):
        name = _class_of(str(kind).removeprefix("Token.")) if text.strip() else None
        if pieces and pieces[-1][0] == name:
            pieces[-1] = name, pieces[-1][1] + text
        else:
            pieces.append((name, text))
    if "".join(text for _, text in pieces) != code:  # a lexer changes line ends and other control characters
        return escape(code)
    return Markup().join(
        escape(text) if name is None else Markup('<span class="code-{}">{}</span>').format(name, text)
        for name, text in pieces
    )


@lru_cache(maxsize=256)
def _class_of(kind: str) -> str | None:
    while kind not in _CLASSES:
        kind = kind.rpartition(".")[0]
        if not kind:
            return None
    return _CLASSES[kind]
