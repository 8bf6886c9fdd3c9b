"""Makes one small model in a process of its own, telling on stdout how far it is: `share note` on each line."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import cast

from placement.errors import InputError
from serving.small_models.make import make_models
from serving.small_models.names import Name


def main() -> None:
    directory, name = Path(sys.argv[1]), cast(Name, sys.argv[2])
    try:
        make_models(directory, [name], on_progress=_tell)
    except InputError as error:
        sys.exit(f"{error}; `penstock models make {directory} --force` makes it anew")


def _tell(name: str, share: float, note: str) -> None:
    sys.stdout.write(f"{share:.4f} {note}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
