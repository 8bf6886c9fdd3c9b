"""Models whose experts are placed whole on the devices of a stage, with replicas, compute what `transformers` does."""

import numpy as np
import pytest
import torch

from moe.expert_placement import ExpertPlacement
from placement.errors import InputError
from serving.models import make_shard, read_config
from serving.sampling import SamplingParams
from tests.serving.models.shapes import ThreadGroup
from tests.serving.models.tiny import VOCABULARY, reference_logits, save

# Mixtral has 4 experts in 3 layers, Qwen3-MoE 6 in the second of 3.
SPREAD = [[0, 3], [1, 2]]
CROWDED = [[2, 0, 1, 3], [1]]
LOPSIDED = [[0, 1, 2, 3], []]
PLACEMENTS = {
    "mixtral": ([SPREAD, CROWDED, LOPSIDED], [SPREAD, SPREAD, SPREAD]),
    "qwen3_moe": ([[[5, 4, 3, 0], [2, 1, 0, 5]]],),
}
CASES = [(name, lists, pp) for name, each in PLACEMENTS.items() for lists in each for pp in (1, 2)]


@pytest.fixture(autouse=True)
def _one_thread():
    torch.set_num_threads(1)


@pytest.mark.parametrize(("name", "lists", "pp"), CASES)
def test_text_and_logits_do_not_depend_on_where_experts_are(name, lists, pp, tmp_path):
    group = ThreadGroup(save(name, tmp_path), 2, pp, experts=ExpertPlacement.of_lists(lists))
    engine = group.engine(step_tokens=24)
    prompts = {key: np.random.default_rng(key).integers(0, VOCABULARY, 5 + 20 * key).tolist() for key in range(3)}
    tokens = {key: list(value) for key, value in prompts.items()}
    logits = {key: [] for key in prompts}
    for key, start in prompts.items():
        engine.submit(key, start, SamplingParams(max_tokens=12, temperature=0.0))
    while engine.has_work():
        for row, output in enumerate(engine.complete(group.run(engine.begin()))):
            logits[output.request].append(group.logits[row])
            tokens[output.request].append(output.token)
    for key, seen in logits.items():
        expected = reference_logits(name, tokens[key])[len(prompts[key]) - 1 : -1]
        torch.testing.assert_close(torch.stack(seen), expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    ("tp", "lists", "said"),
    [
        (4, [SPREAD] * 3, "2 devices, where there are 4"),
        (2, [SPREAD] * 2, "2 layers with experts, where there are 3"),
        (2, [[[0, 1], [2]]] * 3, "3 experts, where there are 4"),
    ],
)
def test_a_placement_for_another_model_is_refused(tp, lists, said, tmp_path):
    sizes = read_config(save("mixtral", tmp_path)).sizes
    with pytest.raises(InputError, match=said):
        make_shard(sizes, tp, 1, 0, ExpertPlacement.of_lists(lists))
