"""Parser for the Markdown that models write.

It keeps every word, and its run time is linear in the text's length. It supports CommonMark with tables and
strikethrough. The only supported HTML is tables, `<br>` and `<details>`. Content that CommonMark hides or drops is
shown. Marks inside words, formulas, paths and patterns are literal text.
"""

import html
import re
import unicodedata
from collections.abc import Callable, Sequence
from itertools import zip_longest
from types import SimpleNamespace
from typing import TypeAlias

from markdown_it import MarkdownIt
from markdown_it.helpers import parseLinkDestination, parseLinkTitle
from markdown_it.rules_block import StateBlock, blockquote, hr, list_block, reference, table
from markdown_it.rules_core import StateCore
from markdown_it.rules_inline import StateInline, autolink, emphasis, escape, strikethrough
from markdown_it.token import Token

from hermes_state.imports import late_pattern
from platforms.formulas import add_formulas, shown

MAX_OPEN_BRACKETS = 6
"""Maximum number of nested brackets in a link's text. The parser looks for the end of each, so more would be slow."""
_TOO_MANY_BRACKETS = re.compile(rf"(?:\[[^\[\]]*+){{{MAX_OPEN_BRACKETS + 1}}}")
_BOXES = {"[ ] ": "☐ ", "[x] ": "☑ ", "[X] ": "☑ "}

TEXT_LINE = re.compile(r">=|>>> |>[._-][<>]|\*(?: [\d*/,-]+){3} [\w*/,-]+$")
"""Pattern for a literal line that looks like a quote, list or rule: a comparison, `>>>`, `>_<` or a cron schedule."""
ESCAPE = re.compile(r"\\(?=[!-/:-@\[-`{-~])")
"""Pattern for a backslash before punctuation that can be markup."""
_BARE_ESCAPE = re.compile(r"\\[\"',/:;?@%^&\\]")
_HAS_BACKSLASH = re.compile(r"\\[^\W_]|(?<!\w)[A-Za-z]:(?:\\|\Z)|\u00af\Z")
"""Pattern for a word after which a backslash is literal, as in `C:\\Users\\_x` or a regular expression."""
BREAK = re.compile(r"<br\s*/?>[ \t]*\n?", re.I)
_DETAILS = re.compile(r"(?m)^[ \t]*<details\b[^<>]*>\s*(?=<summary|$)|</details>\s*$", re.I)
_SUMMARY = re.compile(r"(?m)^[ \t]*<summary\b[^<>]*>\s*+((?:[^<]|<(?!/?summary))*+)</summary>\s*", re.I)
_HTML_TABLE = re.compile(r"<table\b(?:[^<]|<(?!/?table\b))*+</table>[^\n]*", re.I)
_CELL_TAGS = re.compile(r"</?(?:table|thead|tbody|tfoot|colgroup|col|p|div|span|caption|tr|td|th)\b[^<>]*>", re.I)
_STYLES = re.compile(r"</?(?:b|strong|i|em|code|h\d)>|\*\*", re.I)
_CELL_STYLES = re.compile(r"</?(?:(b|strong)|(i|em)|code)>", re.I)
_AUTOLINK = re.compile(r"<(?:(?:https?|ftps?|mailto|tel|tg):|[^\s<>:@]+@[^\s<>@]+\.)", re.I)
"""Beginning of a link in angle brackets. Other text in angle brackets, such as `<std::string>`, is literal."""

_WIDE = "\u0e00-\u109f\u1100-\u11ff\u1780-\u17ff\u2e80-\ud7ff\uf900-\ufaff\uff00-\uffef\U0001f000-\U0003ffff"
_IS_WIDE = late_pattern(rf"(?<=[{_WIDE}])[*~]{{2}}|[*~]{{2,}}(?=[{_WIDE}])")
"""Pattern for `**` next to text in a script without spaces, such as Chinese, where `**` begins or ends emphasis."""
_IS_TEXT = late_pattern(
    rf"(?<=\w)\*(?=\w)|(?<=[^\W{_WIDE}])[*~]{{2,}}(?=[^\W{_WIDE}])|(?<=(\S))[*_~]++(?=\1)|(?<=/)[*_]++(?=[./\\])"
    r"|(?<=[\^\\])[*_~]++"
)
"""Pattern for literal marks, as in `2*3`, `a**2`, `"*"`, `a/*.b`, `x^*` and `a\\_b`."""
_NO_BEGIN = re.compile(r"[*_~]++(?=[,;)\]}=])|(?<=[)\]}])(?:\*(?!\*)|\*+(?=[(\[{]))|(?<=\.)\*(?!\*)|\*(?=[./])")
"""Pattern for marks that do not begin emphasis, as in `f(*, a)`, `x *= 2`, `(a)*(b)`, `.*x` and `*.py`."""
_NO_END = re.compile(r"(?<=[(\[{])|(?<=/)\*(?!\*)|(?<=[)\]}])\*(?=[(\[{])|(?<=\.)\*(?=\$)")
"""Pattern for marks that do not end emphasis, as in `count(*)`, `text/*`, `(a)*(b)` and `.*$`."""
_IS_END = re.compile(r"(?<=[.:!?,;])\*{2,}(?=[^\W\d_])")
"""Pattern for marks that end emphasis although text follows, as in `**Note:**text`."""
_IN_ADDRESS = re.compile(r"://\S*\Z")


def parser() -> MarkdownIt:
    """Return a parser for answers.

    A table is one token, `table`. Its `meta["rows"]` contains the source text of the cells. Its `meta["alignments"]`
    contains `center`, `right` or an empty string for each header column.
    """
    markdown = MarkdownIt("commonmark", {"html": False}).disable(["html_block", "html_inline"])
    markdown.enable(["table", "strikethrough"])
    rules = markdown.block.ruler
    rules.at("table", _table, {"alt": ["paragraph", "reference"]})
    rules.at("reference", _definition)
    # More deeply nested quotes and lists are literal text, because the library drops everything that is 20 levels deep.
    # Each list counts as two levels.
    rules.at("blockquote", _not_too_deep(blockquote, 8), {"alt": ["paragraph", "reference", "blockquote", "list"]})
    rules.at("list", _not_too_deep(list_block, 16), {"alt": ["paragraph", "reference", "blockquote"]})
    rules.at("hr", _not_too_deep(hr, 100), {"alt": ["paragraph", "reference", "blockquote", "list"]})
    markdown.helpers = SimpleNamespace(  # type: ignore[assignment]  # the library reads these three attributes
        parseLinkLabel=_label_end, parseLinkDestination=parseLinkDestination, parseLinkTitle=parseLinkTitle
    )
    rules.before("table", "html_table", _html_table, {"alt": ["paragraph", "reference", "blockquote"]})
    markdown.core.ruler.after("block", "details", _unfold)
    markdown.core.ruler.push("tasks", _show_tasks)
    return _strict(markdown)


def unfolded(text: str) -> str:
    """Return the text without `<details>` tags. Each summary becomes a bold line."""
    if "<" not in text:
        return text
    return _SUMMARY.sub(lambda found: f"**{_STYLES.sub('', found[1]).strip()}**\n", _DETAILS.sub("", text))


def is_backslash(text: str, at: int) -> bool:
    """Return True if the backslash is literal: no markup follows, or it is part of a path, a pattern or an emoticon."""
    if _BARE_ESCAPE.match(text, at):
        return True
    word = text[max(0, at - 300) : at].rpartition(" ")[2]
    return not word.endswith("\\") and _HAS_BACKSLASH.search(word) is not None


def _strict(markdown: MarkdownIt) -> MarkdownIt:
    """Make the parser treat fewer characters as markup. Each delimiter stores its source position as `meta["at"]`."""
    rules = markdown.inline.ruler
    rules.at(
        "escape",
        lambda state, silent: (
            state.src[state.pos] == "\\" and not is_backslash(state.src, state.pos) and escape(state, silent)
        ),
    )
    rules.at("emphasis", _delimiters(emphasis.tokenize))
    rules.at("strikethrough", _delimiters(strikethrough.tokenize))
    rules.at("autolink", lambda state, silent: bool(_AUTOLINK.match(state.src, state.pos)) and autolink(state, silent))
    markdown.inline.ruler2.after("balance_pairs", "unpair", _unpair)
    return markdown


def code_of(token: Token) -> tuple[str, list[str]]:
    """Return a code block's language and lines. Words after the language, which apps hide, become the first line."""
    lines = token.content.removesuffix("\n").split("\n")
    info = token.info.strip()
    first, _, rest = info.partition(" ")
    is_language = re.fullmatch(r"[A-Za-z0-9_+\-.#]{1,20}", first) is not None
    if not is_language or (rest and re.match(r"[\w-]+=|\{", rest) is None):  # `title="a.py"`, `{1,3-5}` may follow
        first, rest = "", info
    return first, [rest.strip(), *lines] if rest else lines


PHONE_COLUMNS = 30
"""Maximum width of a table in code, in columns. On a phone of 375 points, Telegram for iOS has room for 308 points of
text, and a character of code takes 10.2 points (`ChatMessageItemLayoutConstants`, `ChatPresentationData`)."""
_NO_TEXT = "\u2013"


def parsed_cell(markdown: MarkdownIt, cell: str) -> Token:
    """Return the `inline` token of a cell. A cell without markup needs no parsing."""
    if re.fullmatch(r"(?:[^\W_]|[ ,.:;()%+'/-])*", cell):
        return Token("inline", "", 0, content=cell, children=[Token("text", "", 0, content=cell)])
    return markdown.parseInline(cell)[0]


def table_rows(token: Token) -> list[str]:
    """Return the text of a table's rows: first the header, then each row, which has several lines if a cell has.

    Columns are aligned, unless the padding would make the table four times as long.
    """
    cells = ([map(_plain_cell, BREAK.split(cell)) for cell in row] for row in token.meta["rows"])
    rows = [[*zip_longest(*row, fillvalue="")] or [()] for row in cells]
    lines = [line for row in rows for line in row]
    widths: list[int] = []
    for line in lines:
        widths += [0] * (len(line) - len(widths))
        for column, cell in enumerate(line):
            widths[column] = max(widths[column], _columns(cell))
    units = sum(len(cell) + 3 for line in lines for cell in line)
    if sum(sum(widths[: len(line)]) for line in lines) > 2_000 + 4 * units:
        widths = [1] * len(widths)
    sides = [*token.meta["alignments"], *[""] * len(widths)]

    def padded(cell: str, width: int, side: str) -> str:
        space = width - _columns(cell)
        left = {"right": space, "center": space // 2}.get(side, 0)
        return " " * left + cell + " " * (space - left)

    made = ["\n".join(" | ".join(map(padded, line, widths, sides)).rstrip() for line in row) for row in rows]
    made[0] += "\n" + "-+-".join("-" * width for width in widths)
    return made


Listed: TypeAlias = list[tuple[str, list[tuple[str, str]]]]
"""Rows of a table: the title of each row, and for each other cell its header and text."""


def listed(token: Token, shown_rows: Sequence[str]) -> Listed | None:
    """Return a table as a list of rows if it is too wide for a phone. Return None if it must stay a table.

    A wide table also stays a table if the list would be four times as long. An empty cell is shown as a dash.
    """
    head, *others = token.meta["rows"]
    if not others or max(_columns(line) for row in shown_rows for line in row.split("\n")) <= PHONE_COLUMNS:
        return None
    length, rows = 2_000 + 4 * sum(len(cell) + 3 for row in token.meta["rows"] for cell in row), Listed()
    for row in filter(any, others):
        cells = zip_longest(head[1 : len(row)] if rows else head[1:], row[1:], fillvalue="")  # the first row shows all
        values = [(name, cell or _NO_TEXT) for name, cell in cells if name or cell]
        rows.append((row[0] if row and row[0] else _NO_TEXT, values))
        length -= sum(len(name) + len(cell) + 4 for name, cell in values)
        if length < 0:
            return None
    return rows or None


def _plain_cell(cell: str) -> str:
    """Return a cell with its formulas converted, and without emphasis marks unless it might contain a link."""
    if not cell or cell.isalnum():
        return cell
    if re.search(r"[*_`\\&~$]", cell):
        children, has_link = _INLINE.parseInline(cell)[0].children or (), "[" in cell or "<" in cell
        for formula in (child for child in children if child.type == "formula"):
            formula.content = shown(formula)
            cell = cell.replace(formula.info, formula.content)
        cell = cell if has_link else "".join(child.content for child in children)
    return " ".join(cell.split())


def _columns(text: str) -> int:
    """Return the width of `text` in columns: two for Han, kana, Hangul and emoji; none for combining marks."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.category(one) in ("Mn", "Me", "Cf") else 2 if unicodedata.east_asian_width(one) in "WF" else 1
        for one in text
    )


# Rules that replace the library's


def _not_too_deep(
    rule: Callable[[StateBlock, int, int, bool], bool], levels: int
) -> Callable[[StateBlock, int, int, bool], bool]:
    def block(state: StateBlock, start: int, end: int, silent: bool) -> bool:
        is_text = TEXT_LINE.match(_line(state, start))
        return not is_text and state.level < levels and rule(state, start, end, silent)

    return block


def _table(state: StateBlock, start: int, end: int, silent: bool) -> bool:
    """Read a table. Unlike the library's rule, keep cells beyond the header's columns, and do not add missing cells."""
    if not table(state, start, end, True):
        return False
    if silent:
        return True
    ends = state.md.block.ruler.getRules("blockquote")  # rules that can end a quote can also end a table
    parent_type, state.parentType = state.parentType, "table"
    rows = [_cells(_line(state, start)), _cells(_line(state, start + 1))]
    line = start + 2
    while line < end and state.sCount[line] >= state.blkIndent and not state.is_code_block(line):
        row = _line(state, line)
        if not row or (row[0] != "|" and any(rule(state, line, end, True) for rule in ends)):
            break
        rows.append(_cells(row))
        line += 1
    token = state.push("table", "", 0)
    token.map = [start, line]
    delimiters = rows.pop(1)
    sides = ("" if not one.endswith(":") else "center" if one.startswith(":") else "right" for one in delimiters)
    token.meta = {"rows": rows, "alignments": [*sides]}
    state.parentType, state.line = parent_type, line
    return True


def _line(state: StateBlock, line: int) -> str:
    return state.src[state.bMarks[line] + state.tShift[line] : state.eMarks[line]].strip()


def _cells(row: str) -> list[str]:
    """Return the cells of a row, split at each pipe that is neither escaped nor in code."""
    if "`" not in row and "\\" not in row:
        return [cell.strip() for cell in row.removeprefix("|").removesuffix("|").split("|")]
    pieces = re.split(r"(\\\||`+|\|)", row)
    last_at = {piece: at for at, piece in enumerate(pieces)}
    cells: list[list[str]] = [[]]
    fence = ""
    for at, piece in enumerate(pieces):
        if piece == "|" and not fence:
            cells.append([])
            continue
        if piece.startswith("`") and fence in ("", piece):
            fence = piece if not fence and last_at[piece] > at else ""
        cells[-1].append("|" if piece == r"\|" else piece)
    found = ["".join(cell) for cell in cells]
    return [cell.strip() for cell in found[found[0] == "" : len(found) - (found[-1] == "")]]


def _label_end(state: StateInline, start: int, disable_nested: bool = False) -> int:
    """Return the index of the bracket that closes the one at `start`, or -1 if it is missing or nested too deeply."""
    if _TOO_MANY_BRACKETS.match(state.src, start):
        return -1
    before, state.pos = state.pos, start + 1
    level, end = 1, -1
    while state.pos < state.posMax and level <= MAX_OPEN_BRACKETS:
        at, character = state.pos, state.src[state.pos]
        level -= character == "]"
        if level == 0:
            end = at
            break
        state.md.inline.skipToken(state)
        if character == "[":
            if state.pos == at + 1:  # text, not part of a link
                level += 1
            elif disable_nested:
                break
    state.pos = before
    return end


def _definition(state: StateBlock, start: int, end: int, silent: bool) -> bool:
    """Show a link definition as text, even if a link uses it."""
    if not reference(state, start, end, silent):
        return False
    text = state.getLines(start, state.line, state.blkIndent, False).strip()
    state.push("paragraph_open", "p", 1).map = [start, state.line]
    state.push("inline", "", 0).content = text
    state.push("paragraph_close", "p", -1)
    return True


def _html_table(state: StateBlock, start: int, end: int, silent: bool) -> bool:
    """Read an HTML table that begins at the start of a line. Text after the table on its last line becomes a row."""
    found = _HTML_TABLE.match(state.src, state.bMarks[start] + state.tShift[start])
    if found is None or state.is_code_block(start) or start + found[0].count("\n") >= end:
        return False
    source = re.sub(r"\n[ >]*", " ", unfolded(re.sub("(?i)</table>", "<tr><td>", found[0])))
    source = _CELL_STYLES.sub(lambda tag: "**" if tag[1] else "*" if tag[2] else "`", source)
    rows = (re.split(r"(?i)<t[dh]\b[^<>]*>", row) for row in re.split(r"(?i)<(?:tr|caption)\b[^<>]*>", source))
    texts = ([" ".join(html.unescape(_CELL_TAGS.sub("", cell)).split()) for cell in row] for row in rows)
    shown = [row[row[0] == "" :] for row in texts if any(row)]
    if shown and not silent:
        token = state.push("table", "html", 0)
        token.map = [start, start + found[0].count("\n") + 1]
        token.meta, state.line = {"rows": shown, "alignments": [""] * len(shown[0])}, token.map[1]
    return bool(shown)


def _delimiters(rule: Callable[[StateInline, bool], bool]) -> Callable[[StateInline, bool], bool]:
    def tokenize(state: StateInline, silent: bool) -> bool:
        source, start, count = state.src, state.pos, len(state.delimiters)
        if not rule(state, silent):
            return False
        before, after, at = source[max(0, start - 1) : start], source[state.pos : state.pos + 1], state.pos
        in_address = after.isalnum() and after.isascii() and _IN_ADDRESS.search(source, max(0, start - 300), start)
        for one in reversed(state.delimiters[count:]):
            at -= len(state.tokens[one.token].content)
            state.tokens[one.token].meta = {"run": (start, state.pos), "at": at}
            if _IS_WIDE.match(source, start):
                one.open, one.close = after.strip() != "", before.strip() != ""
            elif in_address or _IS_TEXT.match(source, start):
                one.open = one.close = False
            else:
                one.open = one.open and not _NO_BEGIN.match(source, start)
                one.close = (one.close and not _NO_END.match(source, start)) or bool(_IS_END.match(source, start))
        return True

    return tokenize


def _unpair(state: StateInline) -> None:
    """Turn delimiters back into text if they enclose an identifier or belong to a code comment or a pattern."""
    nested = (meta["delimiters"] for meta in state.tokens_meta if meta and "delimiters" in meta)
    for delimiters in (state.delimiters, *nested):
        for one in (one for one in delimiters if one.end >= 0):
            start, opened = state.tokens[one.token].meta["run"]
            closed, end = state.tokens[delimiters[one.end].token].meta["run"]
            before, after = state.src[max(0, start - 1) : start], state.src[end : end + 2]
            if _is_text(before, state.src[opened : min(closed, opened + 200)], after, state.src[start:opened]):
                one.end = -1


def _is_text(before: str, content: str, after: str, mark: str) -> bool:
    if "_" in mark and content.isascii() and content.isidentifier():  # `__init__`, `self._id_(x)`, `_A_`
        is_code = before == "." or re.match(r"[(\[=]|\.\w", after) is not None
        return is_code or mark == "__" or "_" in content or content.isupper()
    if before and before == after[:1] and (before == "/" or (before in "\"'" and before in content)):
        return True  # `/*x*/`, `"*a" and "b*"`
    is_cut = content.rfind("(") > content.rfind(")") or content.count('"') % 2  # `*p = (int*)q`, `*a and "b*"`
    is_bare = content.isascii() and not any(map(str.isalnum, content))
    return bool(is_cut) or is_bare or (content[0] == content[-1] == "/" and " " in content)  # `*/*`, `**/a and b/**`


def _unfold(state: StateCore) -> None:
    for token in state.tokens:
        token.content = unfolded(token.content) if token.type == "inline" else token.content


def _show_tasks(state: StateCore) -> None:
    """Show `[ ]` and `[x]` at the beginning of list items as check boxes."""
    for item, _, inline in zip(state.tokens, state.tokens[1:], state.tokens[2:], strict=False):
        if item.type != "list_item_open" or not inline.children:
            continue
        first = inline.children[0]
        if first.type == "text" and first.content[:4] in _BOXES:
            first.content = _BOXES[first.content[:4]] + first.content[4:]


_INLINE = _strict(MarkdownIt("commonmark", {"html": False}))
add_formulas(_INLINE)
BLOCKS = parser().disable(["inline", "lheading", "reference"])
"""Parser for blocks only, used to split text that stays Markdown."""
