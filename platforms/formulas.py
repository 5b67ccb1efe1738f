r"""Formulas in answers: `$…$`, `$$…$$`, `\(…\)` and `\[…\]` become MathML on the web, and Unicode text elsewhere.

Text between these delimiters is converted only if it is clearly a formula, because prices and shell variables also have
dollar signs. A formula that cannot be converted is shown as its source.
"""

import html
import re
import unicodedata
from functools import cache, lru_cache
from itertools import accumulate
from typing import Any
from xml.etree.ElementTree import Element

from markdown_it import MarkdownIt
from markdown_it.rules_block import StateBlock
from markdown_it.rules_inline import StateInline
from markdown_it.token import Token
from markupsafe import Markup, escape

MAX_CHARACTERS = 2_000
_MAX_LINES = 60
_ENDS = {"$$": "$$", "\\[": "\\]", "\\(": "\\)", "$": "$"}
_NAMES = re.compile(r"\\(?:text|mathrm|operatorname|begin|end)\s*\{[^{}]*\}|\\[A-Za-z]+")
_IS_CLEAR = re.compile(r"\\[A-Za-z]|[\^_]")
_IS_CODE = re.compile(
    r"(?:^|\s)\^[^\s{\d\\*]|\.[*+?]|\b[A-Z]:\\[A-Za-z](?!.*\\(?:to|mapsto|rightarrow)\b)"
    r"|^(?:[A-Z]{3,}|\d[\d.,]*(?!\s+[A-Za-z](?:[\^_][\w{\\]|\s+[-+=]\s)))\s+(?!\\|(?:[-+*/|<>=≤≥≈≠\u00d7·^]|[<>!]=)\s)"
)
r"""Text of a regular expression (`^[a-z]`, `.*`), with a path of Windows, or after a shell variable or a price.

A variable with a coefficient (`2 x^2`) and a function (`X:\Omega \to A`) are formulas.
"""
_IS_POSSIBLE = re.compile(r"[-=<>+*/|!≤≥≈≠∈±\u00d7·√∞()]|^[A-Za-z\u0391-\u03c9]'*$|^\d+(?:[.,]\d+)*$")

_WORD = re.compile(r"[\w$}]", re.ASCII)

_REWRITTEN = (
    (re.compile(r"(?:\s|(?<!\\)~)+"), " "),
    (re.compile(r"\\(?:(?:text)?color|label|[hv]space|[hv]?phantom|cline)\*?\{[^{}]*\}|(?<=\\\\)\[[^\[\]]*\]"), ""),
    (re.compile(r"\\(?:[bB]igg?[lrm]?|hline|displaystyle|textstyle|limits|nonumber|notag|rm|bf|it)(?![A-Za-z])"), ""),
    (re.compile(r"\\(?:[cdt](?=frac)|wide(?=hat|tilde))"), r"\\"),
    (re.compile(r"\\(?:text(?:normal|md|sf|sc)|ce)(?![A-Za-z])"), r"\\text"),
    (re.compile(r"\\(operatorname|begin\{\w+|end\{\w+)\*"), r"\\\1"),
    (re.compile(r"\^\s*(?:\\prime|\{\s*\\prime\s*\})"), "\u2032"),
    (re.compile(r"\\(ne|epsilon)(?![A-Za-z])"), lambda found: "≠" if found[1] == "ne" else "ϵ"),
    (re.compile(r"\{([,.:;])\}"), r"\1"),
    (re.compile(r",\s*&(?=.*\\end\{[dr]?cases)"), "&"),
    (re.compile(r"\\begin\{array\}\s*\{(?:[^{}]|\{[^{}]*\})*\}"), r"\\begin{matrix}"),
    (re.compile(r"\\(begin|end)\{(?:([pbBvV]?)(?:small)?matrix|array|[dr]?(cases))\}"), lambda found: _matrix(found)),
)
"""LaTeX that the library does not know, and its simpler spelling. A matrix becomes one line, as in `[a, b; c, d]`."""
_BRACKETS = {"p": "()", "b": "[]", "B": ("\\{", "\\}"), "v": "||", "V": "‖‖", "cases": ("\\{", "\\}")}
_COMMAND = re.compile(r"\\(?:begin|end)\s*\{\w+\*?\}|\\[A-Za-z]+")
_DOUBLING = re.compile(r"\\(?:overline|underline|underbar|overbrace|underbrace|[bx]?cancel|sout)")
"""LaTeX commands that put a combining mark on every character. Each nested command doubles the text."""
_PAIRED = re.compile(r"\\(?:left|right)(?![A-Za-z])|\\.|[{}]")
_DEPTHS = {"{": 1, "\\left": 1, "}": -1, "\\right": -1}
_ROOTS = str.maketrans({"∛": "3", "∜": "4"})

_ELEMENTS = re.compile(
    "math|mfrac|mi|mmultiscripts|mn|mo|mover|mpadded|mphantom|mprescripts|mroot|mrow|ms|mspace|msqrt|mstyle|msub|"
    "msubsup|msup|mtable|mtd|mtext|mtr|munder|munderover|none"
)
_ATTRIBUTES = re.compile(
    "accent|accentunder|columnalign|columnspacing|depth|display|displaystyle|fence|form|height|linethickness|lspace|"
    "mathvariant|maxsize|minsize|movablelimits|rowspacing|rspace|scriptlevel|separator|stretchy|symmetric|width"
)
_VALUE = re.compile(r"[\w.%+ -]{1,40}")


def add_formulas(markdown: MarkdownIt) -> None:
    """Make the parser read formulas, and the renderer write them as MathML."""
    # Before all other rules, because formulas contain marks that would begin tables, rules, lists and emphasis.
    markdown.block.ruler.before(
        "table", "formula", _read_block, {"alt": ["paragraph", "reference", "blockquote", "list"]}
    )
    markdown.inline.ruler.before("escape", "formula", _read_inline)
    markdown.add_render_rule("formula", lambda _, tokens, at, *rest: _rendered(tokens[at]))


@lru_cache(maxsize=256)
def to_mathml(source: str, is_block: bool) -> Markup | None:
    """Convert LaTeX to MathML, with an allow list of elements and attributes. Return None if this is not possible."""
    from latex2mathml.converter import convert_to_element  # imported when needed, which takes 60 ms and 12 MB

    known = re.sub(r"\\(begin|end)\{(?:aligned|gathered|split|equation\*?)\}", r"\\\1{align*}", source)
    try:
        made = convert_to_element(known, display="block" if is_block else "inline")
        made.set("alttext", source)
        return _allowed(made)
    except Exception:  # noqa: BLE001  # the library raises many kinds of errors, among them RecursionError
        return None


def _allowed(element: Element) -> Markup:
    """Return an element as HTML. Unknown elements become groups, and unknown attributes are left out."""
    name = element.tag if _ELEMENTS.fullmatch(element.tag) else "mrow"
    attributes = Markup("").join(
        Markup(' {}="{}"').format(key, value)
        for key, value in element.items()
        if (key == "alttext" and name == "math") or (_ATTRIBUTES.fullmatch(key) and _VALUE.fullmatch(value))
    )
    # The library's texts contain character references, which the library resolves only after it has written the XML.
    texts = [escape(html.unescape(element.text or ""))]
    for child in element:
        texts += _allowed(child), escape(html.unescape(child.tail or ""))
    return Markup("<{0}{1}>{2}</{0}>").format(Markup(name), attributes, Markup("").join(texts))


def shown(token: Token) -> str:
    """Return a formula as Unicode text, or its source if it cannot be converted."""
    return to_unicode(token.content) or token.info


@lru_cache(maxsize=256)
def to_unicode(source: str) -> str | None:
    """Convert LaTeX to Unicode text. Return None if the braces do not pair, or if the result would lose a letter."""
    text = source.strip()
    if not re.search(r"[\\^_{]", text):
        return text or None
    depths = [0, *accumulate(_DEPTHS.get(one, 0) for one in _PAIRED.findall(text))]
    if depths[-1] or min(depths) < 0 or max(depths) > 30 or len(_DOUBLING.findall(text)) > 6:
        return None
    for pattern, simpler in _REWRITTEN:
        text = pattern.sub(simpler, text)
    made: str = _converter().convert(text)
    lines = (re.sub(r"\\([A-Za-z]+)", r"\1", " ".join(line.split())) for line in made.split("\n"))
    made = "\n".join(filter(None, lines))
    letters = iter(unicodedata.normalize("NFKD", made.translate(_ROOTS)))
    wanted = unicodedata.normalize("NFKD", _COMMAND.sub("", text))
    return made if made and all(letter in letters for letter in wanted if letter.isalnum()) else None


@cache
def _converter() -> Any:
    # Imported when needed, because only Telegram's adapter loads the library anyway.
    from telegramify_markdown.latex_escape.helper import LatexToUnicodeHelper

    library: Any = LatexToUnicodeHelper  # it has types only for its Markdown

    class Converter(LatexToUnicodeHelper):
        @staticmethod
        def translate_sqrt(command: str, option: str, param: str) -> str:
            """Write a root with brackets. The library would put a line over each character."""
            index, root = option.strip(), param.strip()
            sign = {"": "√", "2": "√", "3": "∛", "4": "∜"}.get(index) or library.make_superscript(index) + "√"
            return f"{sign}{root}" if len(root) == 1 or root.isdecimal() else f"{sign}({root})"

        @staticmethod
        def make_fraction(numerator: str, denominator: str) -> str:
            made, below = str(library.make_fraction(numerator, denominator)), denominator.strip()
            is_unclear = re.search(r"\d", below) and not below.isdecimal() and made.endswith(f"/{below}")
            return f"{made.removesuffix(below)}({below})" if is_unclear else made  # `1/(2a)`

    return Converter()


def _matrix(found: re.Match[str]) -> str:
    brackets = _BRACKETS.get(found[3] or found[2] or "", ("", ""))
    return brackets[0] + r"\begin{smallmatrix}" if found[1] == "begin" else r"\end{smallmatrix}" + brackets[1]


def is_formula(text: str) -> bool:
    """Return True if the text between two delimiters is probably a formula.

    >>> [is_formula(text) for text in ("x", "a^2 + b^2", "2n+1", "5 and", "HOME/bin", r"\\\\text{if } x")]
    [True, True, True, False, False, True]
    """
    text = text.strip()
    words = re.findall(r"[^\W\d_]{3,}|[\u2e80-\ud7ff]", _NAMES.sub(" ", text))
    if _IS_CLEAR.search(text):
        return len(words) < 4
    return bool(_IS_POSSIBLE.search(text)) and not words


def _read_inline(state: StateInline, silent: bool) -> bool:
    source, start = state.src, state.pos
    if source[start] not in "$\\":
        return False
    mark = source[start : start + 2] if source[start : start + 2] in _ENDS else source[start]
    if (end := _ENDS.get(mark)) is None:
        return False
    opened = start + len(mark)
    closed = source.find(end, opened, min(state.posMax, opened + MAX_CHARACTERS))
    text = source[opened:closed]
    before, after = source[max(0, start - 1) : start], source[closed + len(end) : closed + len(end) + 1]
    if closed < 0 or before == "\\" or not is_formula(text):
        return False
    if "`" in text or (mark == "$" and ("\n" in text or text.endswith("\\"))):
        return False
    if mark == "$" and (_IS_CODE.search(text.strip()) or (text != text.strip() and not _NAMES.search(text))):
        return False
    if mark == "\\[" and text.strip().isalnum():
        return False  # `\[1\]` is a bracket that should not be a link
    if mark != "$$" and (_WORD.fullmatch(before) or (mark == "$" and _WORD.fullmatch(after))):
        return False  # `US$5`, `$a=$b`, `${a}${b} = 1$`, `C:\(x)`
    if not silent:
        token = state.push("formula", "", 0)
        token.content, token.markup, token.info = text, mark, source[start : closed + len(end)]
        token.meta = {"at": start}
    state.pos = closed + len(end)
    return True


def _read_block(state: StateBlock, start: int, end: int, silent: bool) -> bool:
    """Read a formula that begins at the start of a line and stops at the end of a line."""
    begin = state.bMarks[start] + state.tShift[start]
    mark = state.src[begin : begin + 2]
    if mark not in ("$$", "\\[") or state.is_code_block(start):
        return False
    closed = state.src.find(_ENDS[mark], begin + 2, begin + MAX_CHARACTERS)
    line = next((line for line in range(start, min(end, start + _MAX_LINES)) if state.eMarks[line] > closed), end)
    if closed < 0 or line == end or state.src[closed + 2 : state.eMarks[line]].strip():
        return False
    if any(state.sCount[inner] < state.blkIndent for inner in range(start + 1, line + 1)):
        return False
    written = state.getLines(start, line + 1, state.blkIndent, False).strip()
    if not is_formula(written[2:-2]):
        return False
    if not silent:
        token = state.push("formula", "", 0)
        token.block, token.map, token.content, token.info = True, [start, line + 1], written[2:-2], written
        token.markup = mark
    state.line = line + 1
    return True


def _rendered(token: Token) -> str:
    is_block = token.block or token.markup in ("$$", "\\[")
    made = to_mathml(token.content.strip(), is_block)
    if made is None:
        source = "<br>\n".join(map(escape, shown(token).split("\n")))
        return f"<p>{source}</p>\n" if token.block else source
    return f'<div class="formula" tabindex="0">{made}</div>\n' if token.block else made
