"""The tiles of prefill attention: what the build compiles and what the launch asks for.

A small tile fits every GPU and fills one with few tokens; a large one reads its keys half as often and needs the
registers and the shared memory of a data-centre GPU.
"""

from __future__ import annotations

from dataclasses import dataclass

_ALL_TARGETS = (75, 80, 86, 89, 90, 100, 120)
_LARGE_TARGETS = (80, 90, 100)
HEAD_DIMS = (64, 80, 96, 128, 256)


@dataclass(frozen=True, slots=True)
class PrefillShape:
    """One kernel, a family of its own. The names are those of attention_prefill.cuh."""

    element: str
    head_dim: int
    fragments: int
    slots: int
    targets: tuple[int, ...]
    keys: int = 64
    warps: int = 4
    blocks: int = 2  # on one multiprocessor, if its shared memory allows

    @property
    def lines(self) -> int:
        """Lines of queries of a tile."""
        return 16 * self.fragments * self.warps

    @property
    def threads(self) -> int:
        return 32 * self.warps

    @property
    def shared_bytes(self) -> int:
        """Of the queries and the ring."""
        return 2 * self.head_dim * (self.lines + self.keys * self.slots)

    @property
    def name(self) -> str:
        """Of the kernel and its family."""
        short = "" if self.keys == 64 else f"_k{self.keys}"
        return f"attention_prefill_m{self.lines}{short}_{self.element}_d{self.head_dim}"

    @property
    def defines(self) -> tuple[tuple[str, str], ...]:
        """What attention_prefill.cu needs to know."""
        values = {
            "ELEMENT": self.element,
            "HEAD_DIM": self.head_dim,
            "FRAGMENTS": self.fragments,
            "WARPS": self.warps,
            "KEYS": self.keys,
            "SLOTS": self.slots,
            "BLOCKS": self.blocks,
            "NAME": self.name,
        }
        return tuple((f"PREFILL_{name}", str(value)) for name, value in values.items())


def _shapes() -> tuple[PrefillShape, ...]:
    shapes = []
    for element in ("f16", "bf16"):
        for head_dim in HEAD_DIMS:
            # Turing has no bf16, and 64 KiB of shared memory: too little for the small tile of the largest head.
            targets = _ALL_TARGETS if element == "f16" and head_dim < 256 else _ALL_TARGETS[1:]
            shapes.append(PrefillShape(element, head_dim, fragments=1, slots=2, targets=targets))
            if head_dim < 256:
                shapes.append(PrefillShape(element, head_dim, fragments=2, slots=3, targets=_LARGE_TARGETS))
    shapes.append(PrefillShape("f16", 256, fragments=1, slots=2, keys=32, targets=_ALL_TARGETS[:1]))
    return tuple(shapes)


PREFILL_SHAPES = _shapes()
