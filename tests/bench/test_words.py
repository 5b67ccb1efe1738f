"""Counts of words in code and documentation."""

from bench import words
from bench.source import parse

CODE = '''"""What one does."""
A = 1  # behind it
"""It counts."""
B = "what is no docstring"
'''


def test_docstrings_and_comments_are_counted_and_other_texts_are_not() -> None:
    module = parse("pack/one.py", CODE)
    assert list(words.prose(module)) == ["What one does.", "It counts.", "# behind it"]
    found = words.per_ten_thousand(words.prose(module))
    assert found == {"what": 1428.6, "one": 1428.6, "it": 2857.1, "behind": 1428.6, "nobody": 0, "whoever": 0}


def test_code_without_words_has_no_counts() -> None:
    assert set(words.per_ten_thousand([]).values()) == {0}


def test_code_tables_headings_and_comments_of_a_page_are_no_sentences() -> None:
    page = """# A heading

One short sentence. A second
one, over two lines: `code` counts as a word.

<!-- a comment
of two lines -->
| a | table |
|---|---|

    indented code

- The first item.
- The second.
  It has two sentences.

```python
print("no sentence. Not here.")
```
"""
    assert words.sentences(page) == [3, 6, 5, 3, 2, 4]


def test_the_documentation_has_words_and_sentences() -> None:
    found = words.documentation()
    assert found["words"] > 10_000
    assert 5 < found["words a sentence"] < 30
