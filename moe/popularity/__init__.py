"""Which experts the next tokens will choose: estimators behind one small interface, and how good they were."""

from __future__ import annotations

from moe.popularity.accuracy import Accuracy, top_recall, total_variation
from moe.popularity.base import Estimator, Routes, count_choices
from moe.popularity.blend import Blend
from moe.popularity.marginal import Marginal
from moe.popularity.paths import Paths
from moe.popularity.profile import FILE_NAME, load_profile, save_profile
from moe.popularity.recent import Recent

__all__ = [
    "FILE_NAME",
    "Accuracy",
    "Blend",
    "Estimator",
    "Marginal",
    "Paths",
    "Recent",
    "Routes",
    "count_choices",
    "load_profile",
    "save_profile",
    "top_recall",
    "total_variation",
]
