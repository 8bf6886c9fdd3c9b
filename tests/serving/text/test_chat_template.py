"""Chat templates of the usual kinds, against transformers' own rendering, and what goes wrong in one line."""

import json

import pytest
from transformers import PreTrainedTokenizerFast

from placement.errors import InputError
from serving.text import Tokenizer, chat_template
from tests.serving.text.vocabularies import backend

CHATML = """\
{%- if messages[0].role != 'system' %}
{{- '<|im_start|>system\\nYou turn the wheel.<|im_end|>\\n' }}
{%- endif %}
{% for message in messages %}
    {% generation %}
{{- '<|im_start|>' + message['role'] + '\\n' + message['content'] | trim + '<|im_end|>' + '\\n' }}
    {% endgeneration %}
{% endfor %}
{%- if add_generation_prompt %}
{{- '<|im_start|>assistant\\n' }}
{%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\\n\\n</think>\\n' }}{% endif %}
{% endif %}
"""

LLAMA3 = """\
{{- bos_token }}
{%- set ns = namespace(system='', seen=0) %}
{%- if messages[0]['role'] == 'system' %}
    {%- set ns.system = messages[0]['content'] | trim %}
    {%- set messages = messages[1:] %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\n" }}
{%- if tools is not none %}
    {{- "Environment: ipython\\n" }}
    {%- for tool in tools %}
        {{- tool | tojson(indent=4) }}
        {{- "\\n\\n" }}
    {%- endfor %}
{%- endif %}
{{- ns.system + "<|eot_id|>" }}
{%- for message in messages %}
    {%- if message.tool_calls is defined %}
        {%- if message.tool_calls | length != 1 %}
            {{- raise_exception("This model makes one tool call at a time") }}
        {%- endif %}
        {%- set call = message.tool_calls[0].function %}
        {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n{"name": "' + call.name + '", "parameters": ' }}
        {{- call.arguments | tojson }}
        {{- "}<|eot_id|>" }}
    {%- elif message.role == 'tool' %}
        {{- "<|start_header_id|>ipython<|end_header_id|>\\n\\n" }}
        {{- message.content | tojson if message.content is mapping else message.content }}
        {{- "<|eot_id|>" }}
    {%- else %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' + message['content'] + '<|eot_id|>' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{%- endif %}
"""

MISTRAL = """\
{{ bos_token }}{% for message in messages %}
{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}
{% endif %}
{% if message['role'] == 'user' %}
{{ '[INST] ' + message['content'] + ' [/INST]' }}
{% elif message['role'] == 'assistant' %}
{{ message['content'] + eos_token}}
{% else %}
{{ raise_exception('Only user and assistant roles are supported!') }}
{% endif %}
{% endfor %}
"""

LOOPS = """\
{%- for message in messages %}
{%- if loop.index > 3 %}{% break %}{% endif %}
{%- if not message.content %}{% continue %}{% endif %}
{{- message.content | upper ~ loop.last ~ loop.length ~ unknown }}
{%- endfor %}{{ strftime_now("%Y") }}{{ range(3) | list }}{{ documents is none }}{{ "a<b>&'é" | tojson }}
"""

TEMPLATES = {"chatml": CHATML, "llama3": LLAMA3, "mistral": MISTRAL, "loops": LOOPS}

USER = {"role": "user", "content": "Wie heißt die Mühle? <b> & 水🙂"}
SYSTEM = {"role": "system", "content": " Be brief. "}
ANSWER = {"role": "assistant", "content": "Windmühle\n"}
CALL = {
    "role": "assistant",
    "content": None,
    "tool_calls": [{"type": "function", "function": {"name": "turn", "arguments": {"wheel": "große", "by": 2}}}],
}
RESULT = {"role": "tool", "content": {"angle": 30.5, "unit": "°"}}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "turn",
            "description": "Turn a wheel <slowly>",
            "parameters": {"type": "object", "properties": {"wheel": {"type": "string"}}, "required": ["wheel"]},
        },
    }
]

CASES = [
    ("chatml", [USER], {}),
    ("chatml", [SYSTEM, USER, ANSWER, USER], {"add_generation_prompt": False}),
    ("chatml", [USER], {"enable_thinking": False}),
    ("llama3", [SYSTEM, USER], {}),
    ("llama3", [SYSTEM, USER, CALL, RESULT], {"tools": TOOLS}),
    ("mistral", [USER, ANSWER, USER], {}),
    ("loops", [USER, {"role": "user", "content": ""}, ANSWER, USER, USER], {}),
]


def write_model(directory, template, **files):
    backend("byte-level").save(str(directory / "tokenizer.json"))
    config = {"bos_token": "<s>", "eos_token": {"content": "</s>", "special": True}}
    if template is not None:
        config["chat_template"] = template
    (directory / "tokenizer_config.json").write_text(json.dumps(config))
    for name, content in files.items():
        path = directory / name.replace("__", "/").replace("_jinja", ".jinja").replace("_json", ".json")
        path.parent.mkdir(exist_ok=True)
        path.write_text(content)
    return Tokenizer.from_directory(directory)


@pytest.mark.parametrize(("name", "messages", "options"), CASES)
def test_prompts_are_those_of_transformers(tmp_path, name, messages, options):
    tokenizer = write_model(tmp_path, TEMPLATES[name])
    theirs = PreTrainedTokenizerFast(
        tokenizer_object=backend("byte-level"), bos_token="<s>", eos_token="</s>", chat_template=TEMPLATES[name]
    )
    expected = theirs.apply_chat_template(messages, tokenize=False, **{"add_generation_prompt": True, **options})
    prompt = tokenizer.apply_chat(messages, **options)
    assert prompt == expected
    assert len(prompt) > 20


def test_a_template_says_what_it_does_not_accept(tmp_path):
    tokenizer = write_model(tmp_path, MISTRAL)
    with pytest.raises(InputError, match=r"^chat template: Conversation roles must alternate user/assistant"):
        tokenizer.apply_chat([ANSWER])


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("{{ messages[0].content.nothing.more }}", "no attribute 'nothing'"),
        ("{{ 1 / 0 }}", "ZeroDivisionError"),
        ("{{ messages | tojson(indent=messages) }}", "TypeError"),
        ("{{ range(10000000) | length }}", "Range too big"),
        ("{{ messages.append(1) }}", "append"),
        ("{{ ''.__class__.__mro__ }}", "unsafe"),
        ("{{ lipsum(5) }}", "'lipsum' is undefined"),
        ("{% include 'other' %}", "no loader"),
        ("{{ raise_exception('two\nlines') }}", "two lines"),
        ("{{ raise_exception('x' * 5000) }}", "xxx"),
    ],
)
def test_failures_are_one_short_line(tmp_path, source, reason):
    tokenizer = write_model(tmp_path, source)
    with pytest.raises(InputError, match=r"^chat template: ") as refused:
        tokenizer.apply_chat([USER])
    message = str(refused.value)
    assert reason in message
    assert "\n" not in message
    assert len(message) < 400


def test_what_a_template_prints_is_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(chat_template, "MAX_CHARACTERS", 1000)
    tokenizer = write_model(tmp_path, "{% for a in range(99999) %}{% for b in range(99999) %}x{% endfor %}{% endfor %}")
    with pytest.raises(InputError, match="longer than 1000 characters"):
        tokenizer.apply_chat([USER])


def test_a_model_without_a_template_says_so(tmp_path):
    with pytest.raises(InputError, match="has no chat template"):
        write_model(tmp_path, None).apply_chat([USER])


def test_named_templates(tmp_path):
    named = [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "tools"}]
    tokenizer = write_model(tmp_path, named)
    assert tokenizer.apply_chat([USER]) == "plain"
    assert tokenizer.apply_chat([USER], tools=TOOLS) == "tools"
    tokenizer = write_model(tmp_path, [{"name": "rag", "template": "x"}])
    with pytest.raises(InputError, match="named default; there are rag"):
        tokenizer.apply_chat([USER])


def test_which_file_gives_the_template(tmp_path):
    assert write_model(tmp_path, None, chat_template_json='{"chat_template": "c"}').apply_chat([USER]) == "c"
    assert write_model(tmp_path, "b").apply_chat([USER]) == "b"
    tokenizer = write_model(
        tmp_path, "b", chat_template_jinja="a", additional_chat_templates__tool_use_jinja="with tools"
    )
    assert tokenizer.apply_chat([USER]) == "a"
    assert tokenizer.apply_chat([USER], tools=TOOLS) == "with tools"


def test_names_of_the_request_do_not_hide_its_messages(tmp_path):
    tokenizer = write_model(tmp_path, "{{ messages | length }}{{ extra }}{{ bos_token }}")
    assert tokenizer.apply_chat([USER], extra="x", bos_token="y") == "1xy"
