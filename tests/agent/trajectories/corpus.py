# ruff: noqa: E501 - lines from other projects, as they were found
"""Lines of training files as dataset cards, converters, trainers and issues of others show them.

Each line has the roles of its turns (s, h, g, t), or None if it must be rejected because its meaning is unclear. Long
texts are shortened. Role names, keys and oddities are as they were found.
"""

from typing import Final

LINES: Final[list[tuple[str, str | bytes, str | None]]] = [
    # -- the ShareGPT form of cards and trainers
    ("llama-factory", r'{"conversations":[{"from":"human","value":"计算 345 * 321 = ？"},{"from":"gpt","value":"a"},'
     r'{"from":"function_call","value":"```python\nprint(1)\n```\n"},{"from":"observation","value":"42435"},'
     r'{"from":"gpt","value":"345 * 123 = 42435"}]}', "hggtg"),
    ("apigen-mt", r'{"conversations":[{"from":"human","value":"human query"},{"from":"function_call","value":"{}"},'
     r'{"from":"observation","value":"tool result"},{"from":"gpt","value":"x"}],"system":"policy","tools":"[]"}', "hgtg"),
    ("glaive chatml", r'{"system_message":"s","conversations":[{"from":"system","value":"You have functions"},'
     r'''{"from":"human","value":"add John"},{"from":"function-call","value":"{\"name\": \"c\", \"arguments\": '{}'}"},'''
     r'{"from":"function-response","value":"{\"status\": \"success\"}"},{"from":"gpt","value":"done"}]}', "shgtg"),
    ("hermes trajectory", r'{"conversations":[{"from":"system","value":"You are a function calling AI model..."},'
     r'{"from":"human","value":"ユーザー質問"},{"from":"gpt","value":"<think>\n推論\n</think>\n<tool_call>\n{}\n</tool_call>"},'
     r'{"from":"tool","value":"<tool_response>\n{}\n</tool_response>"},{"from":"gpt","value":"<think>\n</think>\n最終"}],'
     r'"timestamp":"2026-04-14T10:00:00","model":"qwen3.6-plus","completed":true}', "shgtg"),
    ("hermes batch", r'{"prompt_index":0,"conversations":[{"from":"human","value":"q"},{"from":"gpt","value":"a"},'
     r'{"from":"tool","value":"<tool_response>...</tool_response>"},{"from":"gpt","value":"def f(s): ..."}],"metadata":'
     r'{"batch_num":0},"tool_stats":{"terminal":{"count":1,"success":1,"failure":0}}}', "hgtg"),
    ("hermes, two results", r'{"conversations":[{"from":"human","value":"deploy"},{"from":"gpt","value":"ok"},'
     r'{"from":"tool","value":""},{"from":"tool","value":"<tool_response>成功</tool_response>"},'
     r'{"from":"gpt","value":"部署完成！"}]}', "hgttg"),
    ("codebuddy", r'{"conversations":[{"from":"system","value":"..."},{"from":"human","value":"..."},{"from":"gpt",'
     r'"value":"..."},{"from":"tool_call","value":"..."},{"from":"tool_response","value":"..."}]}', "shggt"),
    ("recount test", r'{"conversations":[{"from":"human","value":"do something"},{"from":"function_call","value":"{}"},'
     r'{"from":"function_response","value":""},{"from":"gpt","value":"All done!"}]}', "hgtg"),
    ("userrl", r'{"conversations":[{"from":"human","value":"Environment"},{"from":"gpt","value":"call"},'
     r'{"from":"observation","value":"feedback"}],"system":"s","tools":"Tool schema definitions"}', "hgt"),
    # -- other names of the same roles
    ("plex", r'{"conversations":[{"from":"system","value":"p"},{"from":"user","value":"Find Dune"},{"from":"assistant",'
     r'"value":"I\u0027ll"},{"from":"tool","value":"<tool_response>\n{\"queue\": []}\n</tool_response>"}]}', "shgt"),
    ("axolotl guanaco", r'{"conversations":[{"from":"prompter","value":"q"},{"from":"assistant","value":"a"}]}', "hg"),
    ("upper case", r'[{"id":"O3e7E0nT","conversations":[{"from":"USER","value":"purse"}]}]', None),
    ("upper case line", r'{"id":"O3e7E0nT","conversations":[{"from":"USER","value":"It is a good purse"}]}', "h"),
    ("axolotl 325", r'{"conversations":[{"from":"human","value":"q"},{"from":"bing","value":"a"},{"from":"user","value":'
     r'"q"},{"from":"chatgpt","value":"b"},{"from":"bard","value":"c"}]}', "hghgg"),
    ("gemma", r'{"conversations":[{"role":"system","content":"s"},{"role":"user","content":"q"},{"role":"model",'
     r'"content":"a"}]}', "shg"),
    ("claude-3 capital", r'{"conversations":[{"from":"Human","value":"q"},{"from":"Assistant","value":"a"}]}', "hg"),
    ("human first, mixed", r'{"conversations":[{"from":"human","value":"a"},{"from":"gpt","value":"b"},{"from":"user",'
     r'"value":"c"}]}', "hgh"),
    ("starts with the model", r'{"conversations":[{"from":"assistant","value":"<<A&&one>>"},{"from":"user","value":"d"},'
     r'{"from":"assistant","value":"{\"x\":1}"},{"from":"assistant","value":"<<B&&two>>"}]}', "ghgg"),
    ("empty answer", r'{"conversations":[{"from":"user","value":"q0"},{"from":"assistant","value":""}]}', "hg"),
    # -- other keys
    ("minimind", r'{"conversations":[{"role":"user","content":"请问颈椎病的人枕头多高才最好？"},{"role":"assistant",'
     r'"content":"颈椎病患者选择枕头的高度应该根据..."}]}', "hg"),
    ("openai sft", r'{"messages":[{"role":"system","content":"<system>"},{"role":"user","content":"<query1>"},'
     r'{"role":"assistant","content":"<response1>"}]}', "shg"),
    ("phoenix", r'{"conversations":[{"role":"human","value":"q"},{"role":"gpt","value":"a"}]}', "hg"),
    ("yuque history", r'{"conversation":[{"time":"2025-10-22T12:00:00","from":"user","content":"你好"},{"time":"t","from":'
     r'"function_call","content":"{}"},{"time":"t","from":"function_response","content":"{\"geo_id\": 1}"}]}', "hgt"),
    ("gaitor", r'{"conversationId":"SOME_ID_HERE","conversation":[{"role":"user","content":"weather?","functions":[{}]},'
     r'{"role":"assistant","content":null,"function_call":{"name":"w","arguments":"{}"}},{"role":"function","name":"w",'
     r'"content":"{\"temperature\": \"22\"}"}]}', "hgt"),
    ("openai calls", r'{"messages":[{"role":"user","content":"q"},{"role":"assistant","content":null,"tool_calls":[{"id":'
     r'"call_abc123","type":"function","function":{"name":"web_search","arguments":"{}"}}]},{"role":"tool","tool_call_id":'
     r'"call_abc123","content":"{\"results\": [...]}"}]}', "hgt"),
    ("null beside calls", r'{"conversations":[{"from":"human","value":"高铁"},{"from":"gpt","value":null,"tool_calls":'
     r'[{"name":"search_trains","arguments":{"from":"北京"}}]},{"from":"tool","value":"{}"}]}', "hgt"),
    ("null alone", r'{"conversations":[{"from":"human","value":"q"},{"from":"gpt","value":null}]}', None),
    ("openhermes 2.5", r'{"title":null,"conversations":[{"from":"human","value":"q","weight":null},{"from":"gpt","value":'
     r'"a","weight":null}],"hash":[-123,456],"model":null,"skip_prompt_formatting":false}', "hg"),
    ("slim orca", r'{"conversations":[{"from":"system","value":"s","weight":0.0},{"from":"human","value":"q","weight":0.0},'
     r'{"from":"gpt","value":"a","weight":1.0}]}', "shg"),
    ("slim orca, both columns", r'{"conversations":[{"from":"human","value":"q"}],"messages":[{"role":"user","content":"q"}'
     r']}', None),
    ("llava", r'{"image":"000/000.jpg","conversations":[{"from":"human","value":"<image>\nDescribe it."},{"from":"gpt",'
     r'"value":"A cat."}]}', "hg"),
    ("kto", r'{"conversations":[{"role":"user","content":"Q"},{"role":"assistant","content":"A"}],"label":true}', "hg"),
    # -- other forms
    ("firefly pairs", r'{"conversation_id":1,"category":"x","conversation":[{"human":"q","assistant":"a"}]}', None),
    ("simplismart pairs", r'{"system":"s","conversation":[{"human":"<query1>","assistant":"<response1>"}]}', None),
    ("alpaca", r'{"instruction":"...","input":"...","output":"..."}', None),
    ("dpo", r'{"chosen":[{"role":"user","content":"Q"}],"rejected":[{"role":"user","content":"Q"}]}', None),
    ("veomni", r'{"conversations":[["user",["image",null],["text","What is this?"]],["assistant",["text","A cat."]]]}',
     None),
    ("wrapped message", r'{"conversation":[{"chatgptMessage":{"role":"user","content":"x"},"functions":null}]}', None),
    ("call without words", r'{"conversations":[{"from":"human","value":"q"},{"from":"tool_call","name":"ls","arguments":{}}'
     r']}', None),
    ("typo", r'{"conversation":[{"role":"assitant","content":"The current weather is 22"}]}', None),
    ("alien", r'{"conversations":[{"role":"alien","content":"x"},{"role":"assistant","content":"y"}]}', None),
    ("other", r'{"conversations":[{"from":"other","value":"x"}]}', None),
    ("catalog", r'{"messages":[{"from":"system","value":"s"},{"from":"tool_catalog","value":"{}"},{"from":"user","value":'
     r'"User message"}]}', None),
    ("parts", r'{"messages":[{"role":"user","content":[{"type":"text","text":"hi"},{"type":"image_url","image_url":{}}]}]}',
     None),
    ("number", r'{"conversations":[{"from":"human","value":42}]}', None),
    ("no string role", r'{"conversations":[{"from":null,"value":"x"}]}', None),
    ("text alone", r'{"conversations":["hello","hi"]}', None),
    ("a string of JSON", r'{"conversations":"[{\"from\": \"human\", \"value\": \"q\"}]"}', None),
    ("turns in a string", r'"{\"conversations\": []}"', None),
    ("no turns", r'{"conversations":[]}', ""),
    # -- bytes
    ("byte order mark", b'\xef\xbb\xbf{"conversations":[{"from":"human","value":"q"}]}', "h"),
    ("carriage return", b'{"conversations":[{"from":"human","value":"q"}]}\r\n', "h"),
    ("latin-1", b'{"conversations":[{"from":"human","value":"Z\xfcrich"}]}', None),
    ("latin-1 elsewhere", b'{"conversations":[{"from":"human","value":"q"}],"note":"Z\xfcrich"}', None),
    ("utf-16", '{"conversations":[]}'.encode("utf-16"), None),
    ("python's words", b"{'conversations': [{'from': 'human', 'value': None}]}", None),
    ("NaN", b'{"conversations":[{"from":"human","value":"q"}],"score":NaN}', None),
    ("cut", b'{"conversations":[{"from":"human","val', None),
    ("two objects", b'{"conversations":[]}{"conversations":[]}', None),
    ("half a pair", rb'{"conversations":[{"from":"human","value":"\ud83d cut"}]}', None),
    ("deep", b'{"conversations":' + b"[" * 50_000 + b"]" * 50_000 + b"}", None),
    ("escaped, long number", rb'{"conversations":[{"from":"human","value":"\ud83d\ude00\u00e9"}],"id":12345678901234567890123}',
     "h"),
]  # fmt: skip
