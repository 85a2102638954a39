"""A GGUF file: its settings by name, and its tensors as 32-bit floats.

PyPI's `gguf` parses the file and dequantizes, from llama.cpp's own repository."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from pypi_model.errors import ModelError

_T = gguf.GGMLQuantizationType
# Types whose conversion the tests cover. The library knows more.
TYPES = {_T.F32, _T.F16, _T.Q4_0, _T.Q4_1, _T.Q5_0, _T.Q8_0, _T.Q4_K, _T.Q6_K}


class Source:
    """An open GGUF file. Raises ModelError if it is none."""

    def __init__(self, path: Path) -> None:
        self.name = path.name
        try:
            self._reader = gguf.GGUFReader(path)
        # A damaged file fails anywhere in the parser.
        except Exception as error:
            raise ModelError(f"{path} is no GGUF file that can be read ({error!r}); download it again") from error
        self._fields = self._reader.fields
        self.architecture: str = self.text("general.architecture")

    def get(self, key: str, default: Any = None) -> Any:
        """A setting's value; `default` without one."""
        field = self._fields.get(key)
        return default if field is None else field.contents()

    def need(self, key: str) -> Any:
        """A setting's value. Raises ModelError without one."""
        value = self.get(key)
        if value is None:
            raise ModelError(f"{self.name} lacks the setting {key}; another converter must have written it")
        return value

    def text(self, key: str) -> str:
        """A setting that is a text."""
        value = self.need(key)
        if not isinstance(value, str):
            raise ModelError(f"{self.name}: {key} is {value!r}, and not a text")
        return value

    def size(self, key: str) -> int:
        """A positive whole number of the architecture, such as `block_count`."""
        value = self.need(f"{self.architecture}.{key}")
        if not isinstance(value, int) or value < 1:
            raise ModelError(f"{self.name}: {self.architecture}.{key} is {value!r}, and not one positive number")
        return value

    def real(self, key: str) -> float:
        """A number of the architecture, rounded to the digits that 32 bits hold: 1e-05, not 9.99999974e-06."""
        return float(np.format_float_positional(np.float32(self.need(f"{self.architecture}.{key}")), unique=True))

    def refuse_settings(self, *prefixes: str) -> None:
        """Raises ModelError if the file has a setting that changes the model and that no code here reads."""
        found = next((key for key in self._fields if key.startswith(prefixes)), None)
        if found is not None:
            raise ModelError(f"{self.name} has the setting {found}, which this converter does not know; convert it with another")

    def names(self) -> list[str]:
        """Names of all tensors."""
        return [tensor.name for tensor in self._reader.tensors]

    def tensors(self) -> Iterator[tuple[str, "np.ndarray[Any, np.dtype[np.float32]]"]]:
        """Names and values of all tensors, rows first. Raises ModelError for a type without tests."""
        for tensor in self._reader.tensors:
            if tensor.tensor_type not in TYPES:
                known = ", ".join(sorted(kind.name for kind in TYPES))
                raise ModelError(f"{self.name}: {tensor.name} has the type {tensor.tensor_type.name}; this converter knows {known}")
            values = gguf.dequantize(tensor.data, tensor.tensor_type).astype(np.float32, copy=False)
            if not np.isfinite(values).all():
                raise ModelError(f"{self.name}: {tensor.name} has values that are no numbers; download it again")
            yield tensor.name, values
