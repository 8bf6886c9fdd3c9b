"""Analytic profiles: known models' sizes and speeds, and the laws that any profile keeps."""

import json
from itertools import pairwise

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from placement.costs.analytic import TransformerConfig, UsualStep, analytic_profile
from placement.costs.hardware import KINDS, Link
from placement.costs.layer_cost import layer_costs
from placement.errors import InfeasibleError, InputError

LLAMA_2_7B = {
    "model_type": "llama",
    "num_hidden_layers": 32,
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "intermediate_size": 11008,
    "vocab_size": 32000,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": False,
    "torch_dtype": "float16",
}
LLAMA_3_8B = LLAMA_2_7B | {
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "vocab_size": 128256,
    "torch_dtype": "bfloat16",
}
MISTRAL_7B = LLAMA_3_8B | {"model_type": "mistral", "vocab_size": 32000, "sliding_window": 4096}
MIXTRAL = MISTRAL_7B | {"model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 2}
QWEN2_7B = LLAMA_3_8B | {
    "model_type": "qwen2",
    "num_hidden_layers": 28,
    "hidden_size": 3584,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
    "intermediate_size": 18944,
    "vocab_size": 152064,
}
QWEN3_0_6B = {
    "model_type": "qwen3",
    "num_hidden_layers": 28,
    "hidden_size": 1024,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "intermediate_size": 3072,
    "vocab_size": 151936,
    "tie_word_embeddings": True,
    "dtype": "bfloat16",
}
QWEN3_30B_A3B = {
    "model_type": "qwen3_moe",
    "num_hidden_layers": 48,
    "hidden_size": 2048,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "intermediate_size": 6144,
    "moe_intermediate_size": 768,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "vocab_size": 151936,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}
GPT2 = {
    "model_type": "gpt2",
    "n_layer": 12,
    "n_embd": 768,
    "n_head": 12,
    "n_positions": 1024,
    "vocab_size": 50257,
}
BERT_LARGE = {
    "model_type": "bert",
    "num_hidden_layers": 24,
    "hidden_size": 1024,
    "num_attention_heads": 16,
    "intermediate_size": 4096,
    "vocab_size": 30522,
    "max_position_embeddings": 512,
}


def small(**changes):
    """A decoder that every shape up to tp 8 x pp 4 can take."""
    numbers = {"layers": 8, "hidden": 1024, "heads": 16, "ffn": 4096, "vocabulary": 32000}
    return TransformerConfig(**numbers | changes)


def bert(layers, hidden, heads):
    """AlpaServe's: 2,048 tokens, each with logits."""
    return small(
        layers=layers,
        hidden=hidden,
        heads=heads,
        ffn=4 * hidden,
        vocabulary=51200,
        architecture="encoder",
        tied_embeddings=True,
        sequence_length=2048,
        logits="all",
    )


def only(config, kind="a100", shape=(1, 1), batches=(1,), **more):
    return analytic_profile(config, kind, [shape], batches, **more).shapes[0]


def decode_s(entry, sequences=1, cached=0):
    return sum(stage.seconds(0, sequences, 0, cached) for stage in entry.generation.stages)


@pytest.mark.parametrize(
    ("data", "published"),
    [
        (LLAMA_2_7B, 6_738_415_616),
        (LLAMA_3_8B, 8_030_261_248),
        (MISTRAL_7B, 7_241_732_096),
        (MIXTRAL, 46_702_792_704),
        (QWEN2_7B, 7_615_616_512),
        (QWEN3_0_6B, 596_049_920),
        (QWEN3_30B_A3B, 30_532_122_624),
        (GPT2, 124_439_808),
        (BERT_LARGE, 335_141_888),
    ],
    ids=lambda value: value["model_type"] if isinstance(value, dict) else None,
)
def test_parameter_counts_of_known_models(data, published):
    config = TransformerConfig.from_hf(data)
    assert config.parameters == pytest.approx(published, rel=0.005)


@pytest.mark.parametrize("kind", ["a100", "a100-80gb"])
def test_llama_decodes_as_fast_as_its_weights_are_read(kind):
    entry = only(TransformerConfig.from_hf(LLAMA_2_7B), kind)
    assert 0.009 < decode_s(entry, cached=512) < 0.014
    assert entry.generation.kv_bytes_per_token == (2 * 32 * 4096 * 2,)


def test_mixture_decodes_one_token_faster_than_its_memory_suggests():
    config = TransformerConfig.from_hf(MIXTRAL)
    cost = only(config, "h100", (2, 1)).generation.stages[0]
    # 12.9e9 of the 46.7e9 weights are active for a token; 64 tokens touch all.
    one, many = (cost.seconds(0, sequences, 0, 0) - cost.fixed for sequences in (1, 64))
    assert one / many == pytest.approx(12.9 / 46.7, rel=0.05)
    assert cost.expert_share == 0.25


@pytest.mark.parametrize("data", [MIXTRAL, QWEN3_30B_A3B], ids=["mixtral", "qwen3_moe"])
@pytest.mark.parametrize("kind", ["a100", "cpu"])
def test_a_usual_step_of_experts_costs_what_its_layers_do(data, kind):
    config = msgspec.structs.replace(TransformerConfig.from_hf(data), dtype="fp32")
    entry = only(config, kind)
    layers = layer_costs(config, KINDS[kind], 1, KINDS[kind].node_link, head_copy=False)
    cost = entry.generation.stages[0]
    assert cost.seconds(512, 0, 0, 0) == pytest.approx(layers.step_s(512, 0, 512 * 256).sum(), rel=0.05)
    assert cost.seconds(0, 32, 0, 0) == pytest.approx(layers.step_s(32, 32, 0).sum(), rel=0.05)
    assert cost.seconds(0, 1, 0, 0) == pytest.approx(layers.step_s(1, 1, 0).sum(), rel=0.05)


@pytest.mark.parametrize(
    ("name", "config"),
    [
        ("bert-1.3b", bert(24, 2048, 32)),
        ("bert-2.7b", bert(32, 2560, 32)),
        ("bert-6.7b", bert(32, 4096, 32)),
    ],
)
def test_bert_on_v100_is_within_twice_the_given_profiles(name, config):
    # Copied from the planning cases: seconds of batch 1 and 16 on tp 1, 2, 4, 8.
    given_s = {
        "bert-1.3b": {1: (0.1524, 2.0949), 2: (0.0888, 1.2204), 4: (0.0557, 0.7665), 8: (0.0392, 0.5396)},
        "bert-2.7b": {1: (0.2401, 3.3020), 2: (0.1402, 1.9281), 4: (0.0887, 1.2190), 8: (0.0629, 0.8645)},
        "bert-6.7b": {1: (0.3986, 5.4801), 2: (0.2296, 3.1569), 4: (0.1435, 1.9731), 8: (0.1004, 1.3811)},
    }
    profile = analytic_profile(config, "v100", [(tp, 1) for tp in (1, 2, 4, 8)], (1, 16))
    for entry in profile.shapes:
        for batch, seconds in zip((1, 16), given_s[name][entry.tp], strict=True):
            assert 0.5 < entry.latency(batch) / seconds < 2


@settings(max_examples=60, deadline=None)
@given(
    tp=st.sampled_from([1, 2, 4, 8]),
    pp=st.integers(1, 4),
    layers=st.integers(4, 12),
    architecture=st.sampled_from(["encoder", "decoder"]),
    kind=st.sampled_from(["v100", "t4", "a100", "h100"]),
    experts=st.sampled_from([(0, 0), (8, 2)]),
)
def test_latency_grows_with_batch_and_layers(tp, pp, layers, architecture, kind, experts):
    numbers = {"architecture": architecture, "experts": experts[0], "top_k": experts[1]}
    entry = only(small(layers=layers, **numbers), kind, (tp, pp), (1, 2, 4, 8))
    deeper = only(small(layers=layers + 1, **numbers), kind, (tp, pp), (1, 2, 4, 8))
    latencies = [entry.latency(batch) for batch in (1, 2, 4, 8)]
    assert all(less < more for less, more in pairwise(latencies))
    assert all(entry.latency(batch) < deeper.latency(batch) for batch in (1, 2, 4, 8))
    # Twice the batch never takes more than twice as long.
    assert all(2 * less >= more for less, more in pairwise(latencies))
    assert max(entry.stage_latency[1]) <= max(deeper.stage_latency[1])
    assert (entry.generation is not None) == (architecture == "decoder")


@pytest.mark.parametrize("shape", [(1, 1), (2, 1), (1, 2), (2, 4), (8, 4)])
@pytest.mark.parametrize("data", [LLAMA_2_7B, MIXTRAL, BERT_LARGE], ids=["llama", "mixtral", "bert"])
def test_memory_is_about_the_weights_over_the_devices(data, shape):
    config = TransformerConfig.from_hf(data, dtype="fp16", sequence_length=128)
    entry = only(config, shape=shape)
    weights = 2 * config.parameters
    total = sum(entry.stage_memory) * entry.tp
    assert weights <= total < 1.1 * weights + 32 * 2**20 * entry.tp * entry.pp
    assert entry.memory < 1.25 * weights / (entry.tp * entry.pp) + 64 * 2**20


def test_worked_memory_of_tied_tables():
    config = small(tied_embeddings=True)
    layer, table = 12 * 1024**2 * 2, 32000 * 1024 * 2
    (whole,) = only(config).stage_memory
    first, last = only(config, shape=(1, 2)).stage_memory
    # Activations: 2 hidden vectors and the larger of q, k, v + hidden and ffn, for 544 tokens; logits of 32.
    activations, logits = (2 + 4) * 1024 * 2 * 544, 4 * 32000 * 32
    assert whole == 8 * layer + table + activations + logits
    assert first + last == 8 * layer + 2 * table + 2 * activations + logits


def test_one_device_pays_for_no_all_reduce():
    config, kind = small(), KINDS["a100"]
    slow = Link(1.0, 1.0)
    alone = layer_costs(config, kind, 1, kind.node_link, head_copy=False)
    lonely = layer_costs(config, kind, 1, slow, head_copy=False)
    paired = layer_costs(config, kind, 2, slow, head_copy=False)
    assert np.array_equal(alone.step_s(100, 1, 0), lonely.step_s(100, 1, 0))
    assert paired.step_s(100, 1, 0).min() > 1


def test_worked_all_reduce_and_transfer():
    # Links so slow that nothing else matters: 1 s a step, 1 byte a second after efficiency.
    link = Link(1.0 / KINDS["a100"].assumed.link_efficiency, 1.0)
    kind = msgspec.structs.replace(KINDS["a100"], node_link=link, network=link)
    config = small(layers=2, architecture="encoder", sequence_length=10)
    message = 10 * 1024 * 2
    # Ring over 4: 2 * 3 steps, 2 * 3/4 of the bytes; 2 a layer and one for the embedding.
    assert only(config, kind, (4, 1)).latency() == pytest.approx(5 * (6 + 1.5 * message), rel=1e-6)
    assert only(config, kind, (1, 2)).stage_latency[1][1] == pytest.approx(1 + message, rel=1e-6)
    first, second = only(small(layers=2), kind, (1, 2)).generation.stages
    assert second.fixed - first.fixed == pytest.approx(1, rel=1e-3)
    assert second.seconds(10, 0, 0, 0) == pytest.approx(1 + message, rel=1e-3)


@pytest.mark.parametrize("kind", ["v100", "a100", "h100"])
def test_more_tensor_parallelism_is_faster_on_a_fast_link_but_never_linear(kind):
    config = TransformerConfig.from_hf(LLAMA_2_7B, sequence_length=2048)
    profile = analytic_profile(config, kind, [(1, 1), (2, 1), (4, 1), (8, 1)], (1,))
    seconds = [entry.latency() for entry in profile.shapes]
    assert all(b < a < 2 * b for a, b in pairwise(seconds))


def test_experts_cost_memory_but_not_compute():
    dense = only(small(architecture="encoder", ffn=4096, sequence_length=4096))
    mixed = only(small(architecture="encoder", ffn=2048, experts=16, top_k=2, sequence_length=4096))
    ffn, experts, gate = 2 * 1024 * 4096, 16 * 2 * 1024 * 2048, 1024 * 16
    assert mixed.memory - dense.memory == 8 * 2 * (experts + gate - ffn)
    assert mixed.latency() == pytest.approx(dense.latency(), rel=0.1)
    assert mixed.latency() > dense.latency()


def test_experts_in_every_second_layer_only():
    half = small(experts=8, top_k=2, expert_interval=2)
    assert half.has_experts.tolist() == [False, True] * 4
    whole, none = small(experts=8, top_k=2).parameters, small().parameters
    assert half.parameters == (whole + none) / 2


def test_kv_heads_are_copied_when_devices_outnumber_them():
    config = small(kv_heads=4)
    per_head = 8 * 2 * 64 * 2
    for tp, heads in ((1, 4), (2, 2), (4, 1), (8, 1), (16, 1)):
        assert only(config, shape=(tp, 1)).generation.kv_bytes_per_token == (heads * per_head,)
    stages = only(config, shape=(1, 4)).generation.kv_bytes_per_token
    assert sum(stages) == 4 * per_head
    assert len(stages) == 4


@pytest.mark.parametrize("shape", [(1, 1), (4, 1), (1, 4), (2, 2)])
def test_generation_agrees_with_one_pass_on_a_long_prompt(shape):
    config = TransformerConfig.from_hf(LLAMA_3_8B, sequence_length=4096)
    whole = only(config, shape=shape, usual_step=UsualStep(prefill_chunk=4096))
    halves = only(config, shape=shape, usual_step=UsualStep(prefill_chunk=2048))
    in_one = sum(stage.seconds(4096, 0, 0, 0) for stage in whole.generation.stages)
    in_two = sum(stage.seconds(2048, 0, context, 0) for context in (0, 2048**2) for stage in halves.generation.stages)
    fixed = sum(stage.fixed for stage in halves.generation.stages)
    assert in_one == pytest.approx(whole.latency(), rel=0.005)
    assert in_two - fixed == pytest.approx(whole.latency(), rel=0.005)


def test_each_decoding_sequence_pays_for_its_logits():
    small_head, large_head = (only(small(vocabulary=size)).generation.stages[0] for size in (32000, 64000))
    matmul_s = 2 * 32000 * 1024 / (312e12 * KINDS["a100"].assumed.matmul_efficiency)
    assert large_head.sequence - small_head.sequence == pytest.approx(matmul_s)
    assert large_head.prefill_token == small_head.prefill_token


def test_decoding_more_sequences_is_free_until_compute_rules():
    entry = only(TransformerConfig.from_hf(LLAMA_2_7B))
    assert decode_s(entry, 1) == decode_s(entry, 16)
    assert decode_s(entry, 1024) > 2 * decode_s(entry, 16)
    assert decode_s(entry, 16, cached=16_000) > 1.3 * decode_s(entry, 16)


def test_a_decoder_without_batches_has_only_generation():
    entry = only(small(), batches=())
    assert entry.stage_latency == {}
    assert entry.generation is not None


def test_stages_are_cut_evenly_around_the_vocabulary_head():
    entry = only(small(layers=12, vocabulary=200_000), shape=(1, 3))
    layers = [round(size / (2 * 1024 * 2)) for size in entry.generation.kv_bytes_per_token]
    assert sum(layers) == 12
    assert layers[2] < min(layers[:2])


def test_spans_within_and_across_nodes():
    profile = analytic_profile(small(), "v100", [(1, 1), (2, 2), (8, 1), (4, 4)], (1,), node_devices=8)
    found = {(entry.shape, entry.span): entry for entry in profile.shapes}
    assert set(found) == {
        ((1, 1), None),
        ((2, 2), "node"),
        ((2, 2), "cluster"),
        ((8, 1), "node"),
        ((8, 1), "cluster"),
        ((4, 4), "cluster"),
    }
    assert all(entry.kind == "v100" for entry in profile.shapes)
    pipeline, tensor = ((2, 2), "node"), ((8, 1), "node")
    # Across nodes a cut costs little, an all-reduce much.
    assert 1 < found[pipeline[0], "cluster"].latency() / found[pipeline].latency() < 1.5
    assert found[tensor[0], "cluster"].latency() > 2 * found[tensor].latency()
    assert {entry.span for entry in analytic_profile(small(), "v100", [(2, 2)], (1,)).shapes} == {None}


def test_shapes_the_model_cannot_take_are_left_out():
    config = small(layers=3, heads=12, hidden=768, ffn=3072, kv_heads=4)
    asked = [(tp, pp) for tp in (1, 2, 3, 4, 5, 6, 12) for pp in (1, 3, 4)]
    taken = [entry.shape for entry in analytic_profile(config, "a100", asked, (1,)).shapes]
    assert taken == [(tp, pp) for tp in (1, 2, 4, 12) for pp in (1, 3)]


def test_shapes_that_do_not_fit_in_memory_are_left_out():
    config = TransformerConfig.from_hf(LLAMA_2_7B)
    limit = 5_000_000_000
    profile = analytic_profile(config, "a100", [(1, 1), (2, 1), (4, 1), (1, 4)], (1,), memory_bytes=limit)
    assert [entry.shape for entry in profile.shapes] == [(4, 1), (1, 4)]
    assert all(entry.memory <= limit for entry in profile.shapes)


def test_a_profile_survives_its_file():
    profile = analytic_profile(small(experts=8, top_k=2), "h100", [(1, 1), (2, 2)], node_devices=2)
    plain = json.loads(json.dumps(msgspec.to_builtins(profile, enc_hook=int, str_keys=True)))
    again = msgspec.convert(plain, type(profile), dec_hook=lambda kind, value: kind(value), str_keys=True)
    assert again == profile


def test_the_same_question_gives_the_same_profile():
    ask = [(1, 1), (2, 3), (2, 3)]
    assert analytic_profile(small(), "t4", ask) == analytic_profile(small(), KINDS["t4"], ask[:2])


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"hidden": 1000, "heads": 16}, "hidden 1000 is no multiple of heads 16; give head_size"),
        ({"kv_heads": 5}, "heads 16 is no multiple of kv_heads 5"),
        ({"experts": 8}, "experts 8 and top_k 0: give both, or neither for a dense model"),
        ({"experts": 8, "top_k": 9}, "top_k 9 exceeds the 8 experts"),
        ({"layers": 0}, "layers is 0; it must be 1 or more"),
        ({"heads": 0}, "heads is 0; it must be 1 or more"),
        ({"dtype": "int3"}, "dtype 'int3' is not known; known are fp16, bf16, fp32"),
        ({"logits": "none"}, "a decoder needs its vocabulary head"),
        ({"experts": 8, "top_k": 1, "expert_interval": 9}, "expert_interval 9 exceeds the 8 layers"),
    ],
)
def test_wrong_configs_are_refused_in_one_line(changes, says):
    with pytest.raises(InputError, match=says) as raised:
        small(**changes)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        ({}, "config.json: model_type None is not known here; known are llama, "),
        ([], "config.json: not a JSON object"),
        (LLAMA_2_7B | {"model_type": "mamba"}, "config.json: model_type 'mamba' is not known here"),
        (LLAMA_2_7B | {"hidden_size": None}, "config.json: `hidden_size` is missing; a whole number"),
        (LLAMA_2_7B | {"hidden_size": "big"}, "config.json: `hidden_size` is 'big'; a whole number"),
        (LLAMA_2_7B | {"hidden_size": 4097}, "config.json: hidden 4097 is no multiple of heads 32"),
        (LLAMA_2_7B | {"torch_dtype": "int8"}, "config.json: dtype 'int8' is not modelled"),
        (LLAMA_2_7B | {"tie_word_embeddings": "no"}, "config.json: `tie_word_embeddings` is 'no'"),
        (LLAMA_2_7B | {"quantization_config": {"bits": 4}}, "config.json: quantization_config"),
        (QWEN3_30B_A3B | {"mlp_only_layers": [0]}, "config.json: `mlp_only_layers` is not modelled"),
        (MIXTRAL | {"num_local_experts": 0}, "config.json: `num_local_experts` is 0"),
    ],
)
def test_wrong_hf_configs_name_the_key(data, says):
    with pytest.raises(InputError, match=says) as raised:
        TransformerConfig.from_hf(data)
    assert "\n" not in str(raised.value)


def test_hf_values_can_be_replaced():
    config = TransformerConfig.from_hf(LLAMA_3_8B, dtype="fp16", sequence_length=77)
    assert (config.dtype, config.sequence_length, config.kv_heads, config.head_size) == ("fp16", 77, 8, 128)
    with pytest.raises(InputError, match="nonsense"):
        TransformerConfig.from_hf(LLAMA_3_8B, nonsense=1)


@pytest.mark.parametrize(
    ("ask", "error", "says"),
    [
        (lambda: analytic_profile(small(), "a100", []), InputError, "no shapes are asked for"),
        (lambda: analytic_profile(small(), "a100", [(0, 1)]), InputError, "shape tp0 x pp1: tp is between"),
        (lambda: analytic_profile(small(), "a100", [(1, 65)]), InputError, "pp between 1 and 64"),
        (
            lambda: analytic_profile(small(), "a100", [(1, 1)], (2, 4)),
            InputError,
            r"batch sizes \[2, 4\]: they start",
        ),
        (
            lambda: analytic_profile(bert(2, 64, 4), "a100", [(1, 1)], ()),
            InputError,
            "an encoder needs at least",
        ),
        (lambda: analytic_profile(small(), "abacus", [(1, 1)]), InputError, "device kind 'abacus'"),
        (lambda: analytic_profile(small(dtype="bf16"), "v100", [(1, 1)]), InputError, "v100 has no bf16"),
        (
            lambda: analytic_profile(small(), "a100", [(3, 1), (1, 9)]),
            InfeasibleError,
            "none of the 2 shapes asked for; the first, tp3 x pp1: tp 3 does not divide its 16 heads",
        ),
        (
            lambda: analytic_profile(small(), "a100", [(1, 1)], (1,), memory_bytes=100_000_000),
            InfeasibleError,
            "tp1 x pp1: device memory is too small for 8 layers",
        ),
        (
            lambda: analytic_profile(small(), "a100", [(1, 1)], (1, 1024), memory_bytes=1_000_000_000),
            InfeasibleError,
            "activations of 524288 tokens alone need .* ask for smaller batches",
        ),
        (
            lambda: analytic_profile(small(), "a100", [(1, 1)], node_devices=0),
            InputError,
            "node_devices is 0",
        ),
        (lambda: UsualStep(sequences=0), InputError, "1 or more"),
    ],
)
def test_wrong_questions_are_refused_in_one_line(ask, error, says):
    with pytest.raises(error, match=says) as raised:
        ask()
    assert "\n" not in str(raised.value)
