"""Markdown of any kind becomes safe HTML and parts that fit."""

import re
from html.parser import HTMLParser

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from platforms.formulas import _ATTRIBUTES, _ELEMENTS
from platforms.local.markdown import split_parts, to_html
from tests.platforms.telegram.test_rendering import ANSWERS, AnswerMaker
from tests.sampling import examples

_TAGS = "p br strong em s code pre a ul ol li blockquote hr div span button h3 h4 h5 h6 table thead tbody tr th td sup"
_NAMES = "alttext id href title target rel class start scope type tabindex data-copy"
ALLOWED = {*_TAGS.split(), *_ELEMENTS.pattern.split("|")}
ATTRIBUTES = {*_NAMES.split(), *_ATTRIBUTES.pattern.split("|")}
PIECES = [
    *("a", "word ", "世界", "👋", "\n", "\n\n", "```", "```py\n", "~~~", "`", "**", "*", "_", "~~", "# ", "> ", "- "),
    *("1. ", "    ", "| a | b |\n|:-:|--:|\n| c | d |\n", "[x](", "![i](", "https://e.example", "javascript:alert(1)"),
    *("data:text/html,x", "vbscript:x", ")", '"', "'", "<b>", "<script>", "</script>", "<img src=x onerror=y>", "&lt;"),
    *(
        "&#106;avascript:x",
        "<https://e.example>",
        "[r]: javascript:x\n",
        "[r]",
        "\\",
        "\t",
        "\u2028",
        "\x00",
        "hx-on:x",
    ),
    *("$", "$$", "\\(", "\\)", "\\[", "\\]", "\\text{<img src=x onerror=y>}", "\\href{javascript:x}{y}"),
    *("x^2", "{", "}"),
    *("[^1]", "[^1]: ", "https://e.example/?a=<b>&c"),
]
markdown = st.lists(st.sampled_from(PIECES), max_size=40).map("".join)


class Tags(HTMLParser):
    def __init__(self, html: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(str(html))
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


@examples(150)
@given(text=markdown | st.text(max_size=300))
def test_tags_attributes_and_unsafe_addresses_are_removed(text: str) -> None:
    for tag, attributes in Tags(to_html(text)).found:
        assert tag in ALLOWED
        assert set(attributes) <= ATTRIBUTES
        if attributes.get("class") == "note":
            assert re.fullmatch(r"#(?:note|ref)-[0-9a-f]+-1", attributes["href"] or "")
        elif tag == "a" and attributes:
            assert re.match(r"(?i)(https?:|mailto:)", attributes["href"] or "")
            assert "noopener" in (attributes["rel"] or "")
            assert attributes["target"] == "_blank"


@pytest.mark.parametrize(
    ("text", "html"),
    [
        ("a **b** ~~c~~", "<p>a <strong>b</strong> <s>c</s></p>\n"),
        ("one\ntwo", "<p>one<br>\ntwo</p>\n"),
        ("# Head", "<h3>Head</h3>\n"),
        ("<i>x</i>", "<p>&lt;i&gt;x&lt;/i&gt;</p>\n"),
        ("[x](/chat/main)", "<p>[x](/chat/main)</p>\n"),
        ("[x](file:///etc/passwd)", "<p>[x](file:///etc/passwd)</p>\n"),
        ("[x]() ![i]()", "<p><a>x</a> <a>i</a></p>\n"),
    ],
)
def test_common_markup(text: str, html: str) -> None:
    assert to_html(text) == html


@pytest.mark.parametrize(
    ("text", "formula"),
    [
        ("$E = mc^2$", "E = mc^2"),
        ("the mean $\\bar{x}$, with", "\\bar{x}"),
        ("$n$", "n"),
        ("\\(a_i * b_i * c\\)", "a_i * b_i * c"),
        ("$$x_1$$", "x_1"),
        ("\\[\nx\n- y\n= 2\n\\]", "x\n- y\n= 2"),
        ("> $$\n> \\frac{1}{2}\n> $$", "\\frac{1}{2}"),
        (
            "a\n$$\n\\begin{aligned} a &= b \\\\ c &= d \\end{aligned}\n$$",
            "\\begin{aligned} a &= b \\\\ c &= d \\end{aligned}",
        ),
    ],
)
def test_a_formula_becomes_mathml(text: str, formula: str) -> None:
    [source] = [attributes["alttext"] for tag, attributes in Tags(to_html(text)).found if tag == "math"]
    assert source == formula
    assert "<em>" not in to_html(text)


@pytest.mark.parametrize(
    "text",
    [
        *("between $5 and $6", "US$5=€4, $4", "$HOME/bin:$PATH", "a=$b; c=$d"),
        *("`$x$`", "$$ and $$", "echo $$", "\\$x$"),
        *("    $x^2$", "```\n$$\nx\n$$\n```", "\\[1\\] and \\[note\\]", "C:\\(x)", "$\\frac$", "$\\left($", "$x_{$"),
        f"$${'{' * 5_000}$$",
        f"$${'{' * 1_900}$$",
    ],
)
def test_prices_variables_and_broken_formulas_stay_text(text: str) -> None:
    assert "<math" not in to_html(text)
    shown = re.sub(r"\s", "", Tags(to_html(text)).text)
    assert all(letter in shown for letter in re.sub(r"[\s`\\]", "", text))


def test_a_formula_contains_no_markup_of_its_text() -> None:
    html = to_html("$\\text{<script>x</script> &lt;b&gt;}_1$ $\\href{javascript:x}{y^2}$ $\\color{red;x:y} z^2$")
    assert "<mtext>&lt;script&gt;x&lt;/script&gt;\u00a0&lt;b&gt;</mtext>" in html
    assert "href=" not in html
    assert "red" not in re.sub('alttext="[^"]*"', "", html)


def test_addresses_without_marks_are_links() -> None:
    html = to_html(
        "See https://e.example/a_(b)_c). **https://b.example**, `https://c.example` and [d](https://d.example)"
    )
    hrefs = [attributes["href"] for tag, attributes in Tags(html).found if tag == "a"]
    assert hrefs == ["https://e.example/a_(b)_c", "https://b.example", "https://d.example"]


def test_footnotes_link_both_ways_and_stay_where_they_were() -> None:
    html = to_html("One[^1], two[^b].\n\n[^1]: *First*\n[^c]: alone\n\n[^b]: https://e.example")
    links = [attributes for tag, attributes in Tags(html).found if attributes.get("class") == "note"]
    assert {f"#{link['id']}" for link in links} == {link["href"] for link in links}
    assert len(links) == 4
    assert re.sub(r"\s+", " ", Tags(html).text) == "One1, twob. 1 First [^c]: alone b https://e.example "


def test_code_has_colours_if_it_is_short_and_its_language_is_known() -> None:
    code = "def f(x):  # <b>\n    return 'a\tb'\n"
    html = to_html(f"```python\n{code}```")
    assert '<span class="code-keyword">def</span>' in html
    assert Tags(html).text == f"pythonCopy{code}\n"
    for plain in (f"```nope\n{code}```", f"```\n{code}```", f"```python\n{code * 400}```"):
        assert "code-keyword" not in to_html(plain)


@pytest.mark.parametrize(
    ("text", "fragments"),
    [
        ("- [ ] open\n- [x] **done**", ["<li>☐ open</li>", "<li>☑ <strong>done</strong></li>"]),
        ("[ ] no list", ["<p>[ ] no list</p>"]),
        ("```c++ title\nif (a < b && c) {}\n```", ["<span>c++ title</span>", "if (a &lt; b &amp;&amp; c) {}\n</code>"]),
        ("| a | b |\n|:-:|--:|\n| c | d |", ['<th scope="col" class="center">a</th>', '<td class="right">d</td>']),
        ("![a cat](https://e.example/cat.png)", ['<a href="https://e.example/cat.png"', "a cat</a>"]),
    ],
)
def test_tasks_code_tables_and_images(text: str, fragments: list[str]) -> None:
    html = to_html(text)
    assert [fragment for fragment in fragments if fragment not in html] == []
    assert "style" not in html


@examples(120)
@example(text="aa```data:text/html,xvbscript:x~~~" * 9, limit=200)
@given(text=markdown.map(lambda text: text * 9), limit=st.integers(200, 900))
def test_parts_fit_keep_their_words_and_close_their_code(text: str, limit: int) -> None:
    parts = split_parts(text, limit)
    assert all(len(part.encode("utf-16-le")) // 2 <= limit for part in parts)
    shown = iter("".join(parts))
    assert all(letter in shown for letter in re.sub(r"[\s`~\x00]", "", text)), "every character, in order"


def test_code_that_is_cut_continues_in_the_next_part() -> None:
    code = "".join(f"line {number}\n" for number in range(100))
    parts = split_parts(f"before\n\n````python\n{code}````\nafter", 200)
    assert len(parts) > 3
    assert all(part.startswith("````python\n") for part in parts[1:])
    assert all(part.rstrip().endswith("````") for part in parts[1:-1])
    assert [line for part in parts for line in part.split("\n") if line.startswith("line")] == code.splitlines()


def open_fence_of(part: str) -> str | None:
    """The code fence that is still open at the end of a part, as a reader of Markdown goes through its lines."""
    fence = None
    for line in part.splitlines():
        found = re.match(r" {0,3}(`{3,}|~{3,})(.*)$", line)
        if found is None:
            continue
        marker, rest = found.groups()
        if fence is None:
            fence = marker if marker[0] == "~" or "`" not in rest else None
        elif marker[0] == fence[0] and len(marker) >= len(fence) and not rest.strip():
            fence = None
    return fence


@pytest.mark.fuzz
def test_random_answers_keep_their_words_and_close_their_code_in_every_part() -> None:
    cut = 0
    for seed in range(ANSWERS):
        maker = AnswerMaker(seed)
        parts = split_parts(maker.answer(), 700)
        cut += len(parts) > 1
        assert all(len(part.encode("utf-16-le")) // 2 <= 700 for part in parts)
        assert [part for part in parts if open_fence_of(part)] == [], f"answer {seed} leaves code open"
        shown = "\n".join(Tags(to_html(part)).text for part in parts)
        assert AnswerMaker.words_in(shown) == maker.words, f"answer {seed} lost or moved a word"
    assert cut > ANSWERS / 4, "many of them are cut"
