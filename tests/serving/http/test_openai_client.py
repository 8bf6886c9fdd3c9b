"""OpenAI's own client against a real server."""

import base64
import struct

import openai
import pytest

from router.request import NotServed
from tests.serving.http.doubles import TENANTS, running


def client(server, key="none"):
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key=key, max_retries=0, timeout=10)


def ask(server, **more):
    more = {"model": "chat", "messages": [{"role": "user", "content": "wheel"}], "max_tokens": 4} | more
    return client(server).chat.completions.create(**more)


def rendered(server, text="wheel", role="user"):
    tokenizer = server.service.models["chat"].tokenizer
    return tokenizer.encode(f"<s>{role}: {text}</s>assistant:", False)


def test_chat(server):
    prompt = rendered(server)
    answer = ask(server, max_tokens=len(prompt))
    assert answer.choices[0].message.content == "user: wheelassistant:"
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage.prompt_tokens == answer.usage.completion_tokens == len(prompt)
    assert answer.usage.prompt_tokens_details.cached_tokens == 2
    assert answer.model == "chat"
    assert answer.id.startswith("chatcmpl-")


def test_chat_streams_the_same_text(server):
    whole = ask(server, max_tokens=9, n=2)
    texts, finishes, roles = ["", ""], {}, {}
    chunks = list(ask(server, max_tokens=9, n=2, stream=True, stream_options={"include_usage": True}))
    for chunk in chunks[:-1]:
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
            roles.setdefault(choice.index, choice.delta.role)
            if choice.finish_reason:
                finishes[choice.index] = choice.finish_reason
    assert texts == [choice.message.content for choice in whole.choices]
    assert finishes == {0: "length", 1: "length"}
    assert roles == {0: "assistant", 1: "assistant"}
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == 18 == whole.usage.completion_tokens


def test_stop_string_ends_the_answer_and_the_sequence(server):
    cancelled = len(server.group.cancelled)
    answer = ask(server, max_tokens=100, stop=["wheel"])
    assert answer.choices[0].message.content == "user: "
    assert answer.choices[0].finish_reason == "stop"
    server.wait_until(lambda: len(server.group.cancelled) == cancelled + 1)


def test_messages_of_all_roles_parts_and_tools(server):
    messages = [
        {"role": "developer", "content": "a"},
        {"role": "user", "content": [{"type": "text", "text": "b"}, {"type": "text", "text": "c"}]},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}],
        },
        {"role": "tool", "tool_call_id": "1", "content": "d"},
    ]
    tools = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
    ask(server, messages=messages, tools=tools)
    tokenizer = server.service.models["chat"].tokenizer
    seen = tokenizer.decode(server.router.requests[-1].prompt)
    assert seen == "system: auser: b\ncassistant: tool: dtools 1assistant:"
    ask(server, messages=messages, tools=tools, tool_choice="none")
    assert "tools" not in tokenizer.decode(server.router.requests[-1].prompt)


def test_logprobs(server):
    answer = ask(server, max_tokens=3, logprobs=True, top_logprobs=2)
    content = answer.choices[0].logprobs.content
    assert [one.logprob for one in content] == [-0.5] * 3
    assert [len(one.top_logprobs) for one in content] == [2] * 3
    assert bytes(content[1].bytes).decode() == content[1].token
    chunks = ask(server, max_tokens=3, logprobs=True, stream=True)
    streamed = [one for chunk in chunks for c in chunk.choices if c.logprobs for one in c.logprobs.content]
    assert [one.token for one in streamed] == [one.token for one in content]


def test_all_knobs_reach_the_group(server):
    knobs = {
        "temperature": 0.5, "top_p": 0.9, "seed": 7, "presence_penalty": 0.1, "frequency_penalty": -0.1,
        "logit_bias": {"5": 1.5}, "max_completion_tokens": 3,
    }  # fmt: skip
    extra = {"top_k": 4, "min_p": 0.1, "repetition_penalty": 1.1, "min_tokens": 1, "ignore_eos": True}
    ask(server, **knobs, extra_body=extra | {"stop_token_ids": [6], "unheard_of": 1})
    params = server.group.params[-1]
    assert (params.temperature, params.top_p, params.seed, params.max_tokens) == (0.5, 0.9, 7, 3)
    assert (params.presence_penalty, params.frequency_penalty, params.logit_bias) == (0.1, -0.1, {5: 1.5})
    assert {name: getattr(params, name) for name in extra} == extra
    assert params.stop_token_ids == (6,)


def test_headers_reach_the_router(server):
    headers = {"x-slo-ms": "250", "x-slo-tpot-ms": "50", "x-priority": "batch", "x-request-id": "mine-1"}
    raw = client(server).chat.completions.with_raw_response.create(
        model="chat", messages=[{"role": "user", "content": "a"}], max_tokens=1, extra_headers=headers
    )
    assert raw.headers["x-request-id"] == "mine-1"
    assert "server" not in raw.headers
    request = server.router.requests[-1]
    assert (request.slo_s, request.tpot_s, request.priority) == (0.25, 0.05, "batch")
    assert request.max_tokens == 1
    assert request.tokens == len(request.prompt)


def test_completions_of_texts_and_tokens(server):
    complete = client(server).completions.create
    tokenizer = server.service.models["plain"].tokenizer
    tokens = tokenizer.encode("turns the mill")
    for prompt in ("turns the mill", tokens, ["turns the mill"], [tokens]):
        answer = complete(model="plain", prompt=prompt, max_tokens=len(tokens), echo=True)
        assert answer.choices[0].text == "turns the millturns the mill"
    answer = complete(model="plain", prompt=["water", "gate"], max_tokens=2, n=2, logprobs=2)
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    assert answer.choices[0].text[0] == "w"
    assert answer.choices[2].text[0] == "g"
    assert answer.choices[3].logprobs.token_logprobs == [-0.5, -0.5]
    assert answer.usage.completion_tokens == 8
    assert complete(model="plain", prompt="gate").usage.completion_tokens == 16
    streamed = complete(model="plain", prompt=["water", "gate"], max_tokens=2, stream=True)
    texts = {}
    for chunk in streamed:
        texts[chunk.choices[0].index] = texts.get(chunk.choices[0].index, "") + chunk.choices[0].text
    assert texts == {0: answer.choices[0].text, 1: answer.choices[2].text}


def test_embeddings(server):
    tokenizer = server.service.models["embed"].tokenizer
    tokens = tokenizer.encode("water")
    expected = [len(tokens), sum(tokens), 0.5]
    create = client(server).embeddings.create
    answer = create(model="embed", input=["water", "water"])
    assert [one.embedding for one in answer.data] == [expected, expected]
    assert answer.usage.prompt_tokens == 2 * len(tokens)
    assert create(model="embed", input=tokens, encoding_format="float").data[0].embedding == expected
    raw = create(model="embed", input=[tokens], encoding_format="base64").data[0].embedding
    assert list(struct.unpack("<3f", base64.b64decode(raw))) == expected
    assert server.router.requests[-1].inputs == 1
    assert server.router.requests[-1].max_tokens == 0


def test_models(server):
    models = client(server).models
    assert [model.id for model in models.list()] == ["chat", "plain", "embed", "classify"]
    assert models.retrieve("embed").state == "ready"
    with pytest.raises(openai.NotFoundError):
        models.retrieve("nobody")


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"temperature": 3}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"n": 0}, "n"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_tokens": 10**6}, "max_tokens"),
        ({"top_p": 0}, "top_p"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "robot", "content": "a"}]}, "messages[0].role"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content[0].type"),
        ({"messages": [{"role": "user", "content": "water " * 500}]}, "messages"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"stop": [""]}, "stop"),
        ({"logit_bias": {"99999": 1}}, "logit_bias"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"seed": 2**70}, "seed"),
        ({"model": "plain"}, "model"),
        ({"model": "embed"}, "model"),
        ({"extra_headers": {"x-slo-ms": "soon"}}, "x-slo-ms"),
        ({"extra_headers": {"x-priority": "first"}}, "x-priority"),
    ],
)
def test_bad_requests_name_the_parameter(server, more, param):
    with pytest.raises(openai.BadRequestError) as caught:
        ask(server, **more)
    assert caught.value.param == param
    assert caught.value.type == "invalid_request_error"


def test_bad_completions_and_embeddings(server):
    one = client(server)
    for more in (
        {"suffix": "x"},
        {"best_of": 3},
        {"echo": True, "logprobs": 1},
        {"prompt": []},
        {"prompt": ["a", [1]]},
    ):
        with pytest.raises(openai.BadRequestError) as caught:
            one.completions.create(**{"model": "plain", "prompt": "a"} | more)
        assert caught.value.param == next(iter(more))
    for more in (
        {"dimensions": 9},
        {"input": []},
        {"input": [10**6]},
        {"input": "water " * 500},
        {"encoding_format": "x"},
    ):
        with pytest.raises(openai.BadRequestError) as caught:
            one.embeddings.create(**{"model": "embed", "input": "a"} | more)
        assert caught.value.param == next(iter(more))


def test_unknown_model(server):
    with pytest.raises(openai.NotFoundError) as caught:
        ask(server, model="nobody")
    assert caught.value.code == "model_not_found"


@pytest.mark.parametrize(
    ("refusal", "kind", "status", "retry"),
    [
        (NotServed("refused", "too late", 2.2), openai.RateLimitError, 429, "3"),
        (NotServed("queue-full", "full"), openai.RateLimitError, 429, "1"),
        (NotServed("expired", "overtaken", 0.01), openai.RateLimitError, 429, "1"),
        (NotServed("no-replica", "nobody"), openai.InternalServerError, 503, "1"),
        (NotServed("failed", "lost", 9), openai.InternalServerError, 503, "9"),
        (NotServed("cancelled", "gone"), openai.APIStatusError, 499, None),
        (ZeroDivisionError("secret"), openai.InternalServerError, 500, None),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_refusals_are_http_errors_before_the_first_byte(server, refusal, kind, status, retry, stream):
    server.router.refuse = refusal
    try:
        with pytest.raises(kind) as caught:
            ask(server, stream=stream)
    finally:
        server.router.refuse = None
    assert caught.value.status_code == status
    assert caught.value.response.headers.get("retry-after") == retry
    assert caught.value.code == getattr(refusal, "reason", "internal")
    assert "secret" not in str(caught.value)


def test_failure_after_the_first_token_is_an_event(server):
    server.group.fail_after = 2
    try:
        stream = ask(server, stream=True)
        texts = [next(stream).choices[0].delta.content for _ in range(2)]
        with pytest.raises(openai.APIError, match="the group is lost"):
            next(stream)
        with pytest.raises(openai.InternalServerError):
            ask(server)
    finally:
        server.group.fail_after = None
    assert any(texts)


def test_keys_and_tenants():
    with running(keys=TENANTS) as server:
        client(server, "key-of-anna").models.list()
        client(server, "key-of-bert").embeddings.create(model="embed", input="a")
        assert server.router.requests[-1].tenant == "bert"
        for key in ("key-of-ann", "key-of-annaa", "wrong"):
            with pytest.raises(openai.AuthenticationError):
                client(server, key).models.list()
