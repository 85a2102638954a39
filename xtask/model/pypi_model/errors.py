"""What can be wrong with a model; the text names the thing and the next step."""


class ModelError(Exception):
    """A package, an archive or a GGUF file from which no model can be made."""

    exit_code = 1


class UnreachableError(ModelError):
    """Nothing is known to be wrong: the package index did not answer. `xtask/src/model.rs` knows the code."""

    exit_code = 3
