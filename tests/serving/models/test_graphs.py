"""Recorded decoding steps, without a GPU: what stands for a graph records and replays as a GPU's does.

`rerun` calls the work again over the tensors it was recorded with, by the kernels of a CPU, whose rows do not depend on
each other: to the last bit what is computed without graphs. `tape` keeps the operations that torch was asked for, with
the very tensors they had, and asks for them again: no line of Python runs then, so what a step told Python while it was
recorded, it tells for ever, as on a GPU.
"""

import msgspec
import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from placement.errors import InputError
from serving.attention import Attention, torch_paged
from serving.config import ModelEntry
from serving.controller.served import ModelFiles, check_graphs
from serving.engine import make_generator
from serving.engine.blocks import BLOCK_TOKENS
from serving.engine.scheduler import Limits
from serving.models import graphs, make_shard, read_config, why_no_graphs
from serving.models.load import load_shard
from serving.models.runner import GenerateRunner, make_runner
from serving.sampling import SamplingParams
from tests.serving.models.steps import BLOCKS, step_of
from tests.serving.models.tiny import VOCABULARY, save


def rerun():
    def record(work):
        work()
        output = work().clone()
        return graphs.Recorded(lambda: output.copy_(work()), output)

    return record


class Tape(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.calls = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        assert func is not torch.ops.aten._local_scalar_dense.default, "a GPU cannot record what reads a value back"
        made = func(*args, **(kwargs or {}))
        self.calls.append((func, args, kwargs or {}, made))
        return made

    def replay(self):
        for func, args, kwargs, made in self.calls:
            again = func(*args, **kwargs)
            for old, new in zip(tree_leaves(made), tree_leaves(again), strict=True):
                if isinstance(old, torch.Tensor) and old.data_ptr() != new.data_ptr():
                    old.copy_(new)


def tape():
    def record(work):
        work()
        with Tape() as one:
            output = work()
        return graphs.Recorded(one.replay, output)

    return record


class World:
    """A model's stages in one process; every step's logits are kept, and whether graphs computed them."""

    def __init__(self, path, recorder=None, pp=1, dtype=torch.float32):
        self.config = read_config(path)
        self.pp, self.logits, self.replayed, self.steps = pp, [], 0, []
        self.runners = []
        for rank in range(pp):
            model = load_shard(path, self.config, make_shard(self.config.sizes, 1, pp, rank)).to(dtype)
            runner = GenerateRunner(model, BLOCKS, "cpu", dtype, recorder)
            runner._compiled = None
            self.runners.append(runner)
        self._listen(self.runners[-1])

    def _listen(self, last):
        result, replay = last._result, last._replay

        def keep(step, logits):
            if logits is not None:
                self.logits.append(logits.clone())
            return result(step, logits)

        def count(*given):
            self.replayed += 1
            return replay(*given)

        last._result, last._replay = keep, count

    def warm(self):
        for runner in self.runners:
            runner.warm()
        return self

    def run(self, step):
        inputs = None
        self.steps.append(step)
        for runner in self.runners:
            ran = runner.run(step, inputs)
            inputs = ran.activations
        return ran.result

    def answer(self, prompts=(5, 30, 9, 4, 17, 6), tokens=8, step_tokens=24):
        """Prompts of these lengths, prefilled in chunks that decoding ones join, which end one after the other."""
        engine = make_generator(
            "m",
            vocabulary=VOCABULARY,
            max_positions=self.config.max_positions,
            eos_token_ids=(),
            blocks=BLOCKS,
            lanes=self.pp,
            limits=Limits(step_tokens, 256),
        )
        random = np.random.default_rng(0)
        for number, length in enumerate(prompts):
            prompt = random.integers(0, VOCABULARY, length).tolist()
            params = SamplingParams(max_tokens=tokens + 3 * number, temperature=0.0, ignore_eos=True)
            engine.submit(str(number), prompt, params)
        self.logits.clear()
        while engine.has_work():
            engine.complete(self.run(engine.begin()))
        return torch.cat(self.logits)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return save("llama", tmp_path_factory.mktemp("models"))


@pytest.mark.parametrize(("name", "pp"), [("llama", 1), ("llama", 2), ("mistral", 1), ("gpt2", 1)])
def test_replayed_steps_are_to_the_last_bit_what_eager_ones_are(name, pp, tmp_path):
    path = save(name, tmp_path)
    world = World(path, rerun, pp).warm()
    ours = world.answer()
    assert torch.equal(ours, World(path, pp=pp).answer())
    decoding = [step for step in world.steps if len(step.tokens) == len(step.context_lens)]
    assert world.replayed == len(decoding)
    assert {1, 2, 3} <= {len(step.tokens) for step in decoding}  # three are filled up to four
    assert len(decoding) < len(world.steps)  # prompts were eager


def plain_attention(query, keys, values, tables, starts, lens, *, scale, window=0):
    """One query for each sequence, over all places of its table: nothing read back, so it can be recorded."""
    group, size = query.shape[1] // keys.shape[1], query.shape[2]

    def held(cache):
        rows = cache[tables.clamp(min=0).long()].transpose(2, 3)  # [sequences, blocks, places, kv heads, size]
        return rows.reshape(len(tables), -1, cache.shape[1], size).repeat_interleave(group, 2)

    place = torch.arange(tables.shape[1] * BLOCK_TOKENS)
    hidden = place[None] >= lens[:, None]
    scores = torch.einsum("shd,sphd->shp", query, held(keys)) * scale
    weights = scores.masked_fill(hidden[:, None], float("-inf")).softmax(-1)
    return torch.einsum("shp,sphd->shd", weights, held(values).nan_to_num())


def test_nothing_that_python_saw_at_recording_is_kept(path, monkeypatch):
    """In double precision, which no compiled kernel takes from torch; the twin of attention computes in single."""
    monkeypatch.setattr("serving.models.load.prepare", lambda linear, precision: linear)
    eager, taped = World(path, dtype=torch.float64), World(path, tape, dtype=torch.float64)
    twin = Attention(torch_paged.paged_attention, torch_paged.store_kv)
    eager.runners[0]._attention = twin

    def look(query, keys, values, tables, starts, lens, **how):
        decodes = len(query) == len(lens)
        return (plain_attention if decodes else twin.paged_attention)(query, keys, values, tables, starts, lens, **how)

    taped.runners[0]._attention = Attention(look, torch_paged.store_kv)
    taped.warm()
    torch.testing.assert_close(taped.answer(), eager.answer(), atol=1e-4, rtol=1e-3)
    assert taped.replayed > 10


@pytest.mark.parametrize("field", ["inputs", "positions", "slots", "tables", "lens"])
def test_a_tensor_that_is_not_written_anew_is_noticed(field, path, monkeypatch):
    fill = graphs.fill

    def forgetful(tensors, step, inputs):
        old = getattr(tensors, field).clone()
        fill(tensors, step, inputs)
        getattr(tensors, field).copy_(old)

    expected = World(path).answer()
    assert torch.equal(World(path, rerun).warm().answer(), expected)
    monkeypatch.setattr(graphs, "fill", forgetful)
    found = World(path, rerun).warm().answer()
    assert found.shape != expected.shape or not torch.allclose(found, expected, atol=1e-2)


def test_sequences_that_fill_up_a_graph_write_nowhere_else(path):
    world = World(path, rerun).warm()
    cache = world.runners[0]._cache
    cache.normal_()
    before, step = cache.clone(), step_of([(20, [7]), (3, [8]), (50, [9])])
    world.run(step)
    assert world.replayed == 1
    changed = (cache != before).any(dim=5).any(dim=3).any(dim=1)  # [layers, blocks, places]
    places = changed.flatten(1).nonzero()
    assert {int(place) for _, place in places} == set(step.slots.tolist())
    assert len(places) == len(step.slots) * len(cache)


def test_steps_that_do_not_fit_are_eager(path):
    world = World(path, rerun)
    one = world.runners[0]._graphs
    decoding = step_of([(20, [7]), (3, [8])])
    assert not one.can_run(decoding)  # nothing is recorded yet
    world.warm()
    assert world.runners[0].graph_sizes == list(graphs.SIZES)
    assert one.can_run(decoding)
    assert not one.can_run(step_of([(20, [7]), (3, [8, 9])]))
    assert one.can_run(step_of([(20, [7])] * graphs.SIZES[-1]))
    assert not one.can_run(step_of([(20, [7])] * (graphs.SIZES[-1] + 1)))
    wide = np.zeros((2, world.config.max_positions // BLOCK_TOKENS + 1), np.int32)
    assert not one.can_run(msgspec.structs.replace(decoding, block_tables=wide))


def test_a_model_that_slept_is_recorded_anew(path):
    world = World(path, rerun).warm()
    expected = world.answer()
    replayed = world.replayed
    world.runners[0].suspend()
    assert world.runners[0].graph_sizes == []
    world.runners[0].resume()
    assert torch.equal(world.answer(), expected)
    assert world.replayed == 2 * replayed


def test_graphs_where_there_can_be_none_are_refused_in_a_line(path, tmp_path):
    config = read_config(path)
    with pytest.raises(InputError, match="graphs need a CUDA device, and this one is a CPU's core; leave `graphs` out"):
        make_runner(path, config, make_shard(config.sizes, 1, 1, 0), blocks=4, graphs=True)
    assert why_no_graphs(config, "cuda") is None
    assert "with experts" in why_no_graphs(read_config(save("mixtral", tmp_path)), "cuda")
    assert "in one pass" in why_no_graphs(read_config(save("bert", tmp_path)), "cuda")
    entry = ModelEntry(name="chat", path=str(path), slo={"ttft": 1, "tpot": 1}, graphs=True)
    files = {"chat": ModelFiles(entry, config, None)}
    check_graphs(files, {"n/0": "cuda:0"})
    with pytest.raises(InputError, match=r"models \(chat\): graphs need a CUDA device"):
        check_graphs(files, {"n/0": "cuda:0", "n/1": "cpu:0"})
