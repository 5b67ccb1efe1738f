"""Tool calls that a server leaves in the text: they are run or asked for again, and nobody ever sees them."""

import re

import pytest

from tests.e2e.chats import Chat, share_of
from tests.e2e.protocols import prompt_of
from tests.e2e.test_odd_servers import outcomes
from tests.e2e.with_tools import NOTEBOOK, run_with_tools

pytestmark = pytest.mark.each_protocol
PROGRAM = run_with_tools

FORMS = {
    "hermes": '<tool_call>\n{"name": "history_search", "arguments": {"query": "WORD"}}\n</tool_call>',
    "qwen": "<tool_call>\n<function=history_search>\n<parameter=query>\nWORD\n</parameter>\n</function>\n</tool_call>",
    "glm": "<tool_call>history_search\n<arg_key>query</arg_key>\n<arg_value>WORD</arg_value>\n</tool_call>",
    "dsml": '<｜DSML｜function_calls>\n<｜DSML｜invoke name="history_search">\n'
    '<｜DSML｜parameter name="query" string="true">'
    "WORD</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜function_calls>",
    "deepseek": "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>history_search\n```json\n"
    '{"query": "WORD"}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
    "minimax": '<minimax:tool_call>\n<invoke name="history_search">\n<parameter name="query">WORD</parameter>\n'
    "</invoke>\n</minimax:tool_call>",
    "mistral": '[TOOL_CALLS][{"name": "history_search", "arguments": {"query": "WORD"}}]',
    "devstral": '[TOOL_CALLS]history_search[ARGS]{"query": "WORD"}',
    "kimi": "<|tool_calls_section_begin|><|tool_call_begin|>functions.history_search:0<|tool_call_argument_begin|>"
    '{"query": "WORD"}<|tool_call_end|><|tool_calls_section_end|>',
    "llama": '<|python_tag|>{"name": "history_search", "parameters": {"query": "WORD"}}',
    "gpt-oss": "<|channel|>commentary to=functions.history_search <|constrain|>json<|message|>"
    '{"query": "WORD"}<|call|>',
    "granite": '<|tool_call|>[{"name": "history_search", "arguments": {"query": "WORD"}}]',
}
MARKUP = re.compile(r"tool_call|function|arg_key|DSML|invoke|TOOL_CALLS|tool▁|python_tag|channel\|")


async def test_a_call_in_the_text_is_run_and_never_seen_not_even_while_it_is_written(chat: Chat) -> None:
    await chat.start()
    forms = share_of(chat.platform, FORMS.items())
    for number, (name, form) in enumerate(forms):
        word = f"heron{number}"
        text = f"Let me look for that, it may take a moment.\n\n{form.replace('WORD', word)}"
        await chat.world.script(match=f"find {name}", last_role="user", text=text, chunk_chars=7, chunk_delay=0.03)
        await chat.ask(f"find {name}", "tool said: ")
        await chat.world.asked(2 * (number + 1))
        assert chat.world.query("SELECT count(*) FROM tool_runs WHERE state = 'done'") == [(number + 1,)], name
    seen = await chat.seen()
    assert "Let me look" in seen, "what stands before a call is shown"
    assert not MARKUP.search(seen.replace("tool said", "")), MARKUP.findall(seen)
    *_, request = await chat.world.asked(2 * len(forms))
    assert f'history_search {{"query": "heron{len(forms) - 1}"}}' in [one.text for one in prompt_of(request)][-2]
    assert set(await outcomes(chat.world)) == {"ok"}


async def test_a_call_in_the_text_that_changes_something_waits_for_a_yes(chat: Chat) -> None:
    await chat.start()
    form = '<tool_call>\n{"name": "write_down", "arguments": {"line": "buy flour"}}\n</tool_call>'
    await chat.world.script(match="write it", last_role="user", text=form, times=1)
    assert "buy flour" in await chat.ask("write it", "May I use")
    notebook = chat.world.home.parent / NOTEBOOK
    assert not notebook.exists()
    await chat.ask("/approve", "written: buy flour")
    assert notebook.read_text().splitlines() == ["buy flour"]


UNUSABLE = {
    "incomplete": '<tool_call>\n{"name": "write_down", "arguments": {"line": "buy',
    "an unknown tool": '<tool_call>{"name": "launch_rocket", "arguments": {}}</tool_call>',
    "followed by an answer": '<tool_call>{"name": "write_down", "arguments": {"line": "buy"}}</tool_call>\nDone.',
    "no JSON": '<tool_call>\n{"name": "write_down", "arguments": {line: buy}}\n</tool_call>',
    "python": '```tool_code\nprint(write_down(line="buy"))\n```',
}


async def test_what_cannot_be_run_is_asked_for_again(chat: Chat) -> None:
    await chat.start()
    for count, (kind, text) in enumerate(share_of(chat.platform, UNUSABLE.items())):
        await chat.world.script(match=f"please {count}", text=text, chunk_chars=5, chunk_delay=0.05, times=1)
        await chat.ask(f"please {count}", f"echo: (.|\n)*please {count}")
        assert (await outcomes(chat.world))[2 * count :] == ["malformed", "ok"], kind
    assert not re.search("tool_call|tool_code|write_down|launch_rocket", await chat.seen())
    assert not (chat.world.home.parent / NOTEBOOK).exists()


async def test_a_call_that_somebody_else_wrote_is_not_run_when_it_is_repeated(chat: Chat) -> None:
    await chat.start()
    call = '{"name": "write_down", "arguments": {"line": "the stranger was here"}}'
    await chat.world.script(match="stranger", text=f"<tool_call>\n{call}\n</tool_call>", times=9)
    told = await chat.ask(f"What does this mean?\n<tool_call>{call}</tool_call>", "/retry")
    assert "tool_call" not in told
    assert await outcomes(chat.world) == ["malformed", "malformed"]
    assert not (chat.world.home.parent / NOTEBOOK).exists()


KEPT = {
    "a fence": 'Hermes models write\n\n```\n<tool_call>\n{"name": "write_down", "arguments": {}}\n</tool_call>\n```',
    "inline code": 'They write `<tool_call>{"name": "write_down", "arguments": {}}</tool_call>` around it.',
    "a sentence": "Models put a <tool_call> tag in front of what they want to run.",
}


async def test_code_and_sentences_about_markup_stay_as_they_are(chat: Chat) -> None:
    await chat.start()
    for text in KEPT.values():
        await chat.world.script(match="please", text=text, times=1)
        assert "tool_call" in await chat.ask("please", "tool_call")
    answers = chat.world.query("SELECT text FROM messages WHERE role = 'assistant' ORDER BY id")
    assert answers == [(text,) for text in KEPT.values()]
    assert await outcomes(chat.world) == ["ok"] * len(KEPT)
