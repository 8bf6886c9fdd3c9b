"""What the small models are called."""

from typing import Literal, get_args

Name = Literal["chat", "moe-chat", "embed", "classify"]
NAMES: tuple[Name, ...] = get_args(Name)
