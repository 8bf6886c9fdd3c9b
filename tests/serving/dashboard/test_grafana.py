"""The Grafana dashboard asks for figures that there are."""

import json
import re
from pathlib import Path

from serving.config import ExpertsConfig
from serving.controller.expert_views import expert_figures
from serving.controller.experts import ExpertKeeper
from serving.controller.loan_views import loan_figures
from serving.controller.views import figures
from serving.http.exposition import Exposition
from serving.http.meters import Meters
from tests.serving.controller.test_lender import lending
from tests.serving.controller.worlds import run

FILE = Path(__file__).parents[3] / "serving" / "dashboard" / "page" / "grafana.json"


def test_every_figure_is_told():
    async def work():
        async with lending() as (controller, lender, _):
            keeper = ExpertKeeper(controller, {}, ExpertsConfig())
            families = [*figures(controller), *expert_figures(keeper), *loan_figures(lender)]
            names = {f"penstock:{one.name}" + ("_total" if one.kind == "counter" else "") for one in families}
            told = Exposition(Meters(["chat"]), controller.router.statistics, lambda: ()).text().decode()
            return (
                names
                | set(re.findall(r"# TYPE (penstock:\w+)", told))
                | set(re.findall(r"^(penstock:\w+)", told, re.M))
            )

    known = run(work())
    panels = json.loads(FILE.read_text())["panels"]
    asked = {
        name for panel in panels for target in panel["targets"] for name in re.findall(r"penstock:\w+", target["expr"])
    }
    assert {name for name in asked if name not in known and name.removesuffix("_bucket") not in known} == set()
    assert len(panels) > 8
