"""Triton's own client against a real server, and the tensors' laws."""

import numpy as np
import pytest
import tritonclient.http as triton
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.utils import InferenceServerException, serialize_byte_tensor

from serving.http.errors import BadRequest
from serving.http.kserve_tensors import read_request
from tests.serving.http.doubles import running


@pytest.fixture(scope="module")
def client(server):
    with triton.InferenceServerClient(f"127.0.0.1:{server.port}") as one:
        yield one


def expected(server, texts, model="embed"):
    tokenizer = server.service.models[model].tokenizer
    return [[len(tokens), sum(tokens), 0.5] for tokens in map(tokenizer.encode, texts)]


def text_input(texts, binary=True):
    one = triton.InferInput("text", [len(texts)], "BYTES")
    one.set_data_from_numpy(np.array(texts, object), binary_data=binary)
    return one


def test_health_and_metadata(client):
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("embed")
    assert client.is_model_ready("embed", "1")
    assert client.get_server_metadata()["name"] == "penstock"
    metadata = client.get_model_metadata("classify")
    assert metadata["outputs"] == [{"name": "scores", "datatype": "FP32", "shape": [-1, 3]}]
    assert metadata["labels"] == ["good", "fair", "bad"]
    assert "labels" not in client.get_model_metadata("embed")


@pytest.mark.parametrize("binary_in", [False, True])
@pytest.mark.parametrize("binary_out", [False, True, None])
def test_infer_texts(server, client, binary_in, binary_out):
    texts = ["water", "wheel größe 水"]
    outputs = None if binary_out is None else [triton.InferRequestedOutput("embedding", binary_data=binary_out)]
    result = client.infer("embed", [text_input(texts, binary_in)], outputs=outputs, request_id="mine")
    assert result.as_numpy("embedding").tolist() == expected(server, texts)
    assert result.get_response()["id"] == "mine"


def test_infer_tokens_with_a_mask(client):
    ids = triton.InferInput("input_ids", [2, 3], "INT64")
    ids.set_data_from_numpy(np.array([[1, 2, 3], [4, 5, 0]], np.int64))
    mask = triton.InferInput("attention_mask", [2, 3], "INT64")
    mask.set_data_from_numpy(np.array([[1, 1, 1], [1, 1, 0]], np.int64))
    result = client.infer("classify", [ids, mask], model_version="1")
    assert result.as_numpy("scores").tolist() == [[3, 6, 0.5], [2, 9, 0.5]]


def test_errors_are_told_as_text(client):
    numbers = triton.InferInput("text", [1], "FP32")
    numbers.set_data_from_numpy(np.zeros(1, np.float32))
    cases = [
        ("nobody", text_input(["a"]), {}, "404", "not served"),
        ("chat", text_input(["a"]), {}, "400", "generates"),
        ("embed", numbers, {}, "400", "BYTES"),
        ("embed", text_input(["water " * 900]), {}, "400", "at most"),
        ("embed", text_input(["a"]), {"model_version": "7"}, "404", "version"),
        ("embed", text_input(["a"]), {"outputs": [triton.InferRequestedOutput("x")]}, "400", "embedding"),
    ]
    for model, tensor, more, status, words in cases:
        with pytest.raises(InferenceServerException, match=words) as caught:
            client.infer(model, [tensor], **more)
        assert caught.value.status() == status


def test_models_that_are_not_ready():
    with (
        running(unready=lambda: {"embed": "loading"}) as server,
        triton.InferenceServerClient(f"127.0.0.1:{server.port}") as client,
    ):
        assert not client.is_server_ready()
        assert not client.is_model_ready("embed")
        assert client.is_model_ready("chat")


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]))))
def test_texts_come_out_of_bytes_as_they_went_in(texts):
    raw = serialize_byte_tensor(np.array(texts, object)).item() if texts else b""
    head = b'{"inputs":[{"name":"t","datatype":"BYTES","shape":[%d],"parameters":{"binary_data_size":%d}}]}'
    head = head % (len(texts), len(raw))
    _, tensors = read_request(head + raw, b"%d" % len(head))
    assert tensors["t"].values == texts


@given(st.binary(max_size=64), st.integers(0, 6), st.sampled_from(["BYTES", "FP32", "INT64"]))
def test_any_bytes_are_a_tensor_or_a_bad_request(raw, count, datatype):
    head = f'{{"inputs":[{{"name":"t","datatype":"{datatype}","shape":[{count}],"parameters":{{"binary_data_size":'
    head = f"{head}{len(raw)}}}}}]}}".encode()
    try:
        _, tensors = read_request(head + raw, b"%d" % len(head))
    except BadRequest:
        return
    assert len(tensors["t"].values) == count
