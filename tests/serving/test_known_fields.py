"""A field that nobody knows is answered by the one that is meant."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from placement.errors import InputError
from placement.files import convert, read_document
from serving.config import ServeConfig

CLUSTER = {"nodes": [{"name": "n", "devices": 1, "kind": "cpu", "memory": "1GiB"}]}
MODEL = {"name": "m", "path": "m", "slo": "1s"}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"lisen": "x"}, "config: unknown field `lisen`; did you mean `listen`?"),
        ({"models": [{**MODEL, "pth": "x"}]}, "config: models[0]: unknown field `pth`; did you mean `path`?"),
        ({"limits": {"queu": 1}}, "config: limits: unknown field `queu`; did you mean `queue`?"),
        ({"training": {"loans": {"xyz": 1}}}, "config: training.loans: unknown field `xyz`; there are "),
    ],
)
def test_what_is_meant_is_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as error:
        convert({"cluster": CLUSTER, "models": [MODEL], **changes}, ServeConfig, "config")
    assert str(error.value).startswith(message)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [1,\n b: }", "not valid YAML: line 2, column 5: expected the node content, but found '}'"),
        ("", "is empty"),
        ("# nothing\n", "is empty"),
    ],
)
def test_yaml_that_is_none_is_told_with_its_place(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(text)
    with pytest.raises(InputError) as error:
        read_document(path, ServeConfig)
    assert str(error.value) == f"{path}: {message}"
