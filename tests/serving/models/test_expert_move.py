"""What a device says when its experts cannot be moved."""

import pytest

from moe.expert_placement import ExpertPlacement
from moe.experts import Experts
from placement.errors import InputError
from serving.models import make_shard, read_config
from serving.models.expert_move import ExpertMove
from serving.models.load import load_shard
from tests.serving.models.tiny import save

PLACES = ExpertPlacement.of_lists([[[0, 3], [1, 2]]] * 3)


def test_experts_that_are_one_tensor_are_refused_by_one_line(tmp_path):
    """As on a GPU. The mover takes an InputError for the model's fault; all else ends the worker."""
    directory = save("mixtral", tmp_path)
    config = read_config(directory)
    model = load_shard(directory, config, make_shard(config.sizes, 2, 1, 0, PLACES))
    assert ExpertMove(model, directory, "fp32", PLACES).read == 0
    layer = model.layers[1].feedforward
    layer.experts = Experts(2, config.sizes.hidden, config.sizes.expert_ffn)
    with pytest.raises(InputError, match="moved on CPUs so far: on this device a layer's experts are one tensor"):
        ExpertMove(model, directory, "fp32", PLACES)
