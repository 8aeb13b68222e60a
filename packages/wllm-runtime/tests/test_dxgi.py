"""DXGI's figures, asked of objects that stand in for it: tables of C functions in memory, as Windows has them."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Mapping
from ctypes import c_int, c_uint, c_uint64, c_void_p
from types import SimpleNamespace
from typing import Any

import pytest

from wllm_runtime import dxgi
from wllm_runtime.dxgi import Adapter, MemoryInfo, find_adapter, open_adapter

LUID = 0x1_0000_ABCD
FAILED = -2005270527  # DXGI_ERROR_NOT_FOUND, and more, as an HRESULT
# Interface ids in memory: three numbers in little-endian order, then bytes as they are written.
FACTORY4 = bytes.fromhex("02eac61b36ef4f46bf0c21ca39e5168a")
ADAPTER3 = bytes.fromhex("a467596492131043a7988053ce3e93fd")


class ComObject:
    """An object with `methods` at their places in the table; every other place is the address 0."""

    def __init__(self, methods: Mapping[int, tuple[tuple[Any, ...], Callable[..., int]]]) -> None:
        self.num_released = 0
        methods = {2: ((), self._release), **methods}
        self._functions = {
            place: ctypes.CFUNCTYPE(c_int, c_void_p, *types)(body) for place, (types, body) in methods.items()
        }
        self._table = (c_void_p * 32)()
        for place, function in self._functions.items():
            self._table[place] = ctypes.cast(function, c_void_p).value
        self._pointer = c_void_p(ctypes.addressof(self._table))

    @property
    def address(self) -> int:
        return ctypes.addressof(self._pointer)

    def _release(self, this: int) -> int:
        assert this == self.address
        self.num_released += 1
        return 0


class Card:
    """A GPU with a budget of 10,000, 2,500 in use and 300 in host memory; `answers` is how DXGI answers questions."""

    def __init__(self, *, answers: int = 0, factory: int = 0, driver: int = 0, has_luid: bool = True) -> None:
        self.nodes: list[int] = []
        self.local, self.host = (10_000, 2_500), (50_000, 300)
        self.adapter = ComObject({14: ((c_uint, c_int, ctypes.POINTER(MemoryInfo)), self._query)})
        self.factory = ComObject({26: ((c_uint64, c_void_p, ctypes.POINTER(c_void_p)), self._by_luid)})
        self.answers = answers
        self.driver = SimpleNamespace(
            cuInit=lambda flags: driver,
            cuDeviceGet=self._device,
            cuDeviceGetLuid=self._luid if has_luid else lambda *_: 801,
        )
        self.dxgi = SimpleNamespace(CreateDXGIFactory1=self._create if factory == 0 else lambda *_: factory)

    def find(self, index: int = 3) -> Adapter | None:
        return find_adapter(self.driver, self.dxgi, index)

    def _device(self, at: Any, index: int) -> int:
        at._obj.value = index + 40
        return 0 if index == 3 else 101

    def _luid(self, luid: Any, nodes: Any, device: c_int) -> int:
        assert device.value == 43
        luid._obj.value, nodes._obj.value = LUID, 0b10
        return 0

    def _create(self, interface: bytes, at: Any) -> int:
        assert interface == FACTORY4
        at._obj.value = self.factory.address
        return 0

    def _by_luid(self, this: int, luid: int, interface: int, at: Any) -> int:
        assert ctypes.string_at(interface, 16) == ADAPTER3
        if (this, luid) != (self.factory.address, LUID):
            return FAILED
        at[0] = self.adapter.address
        return 0

    def _query(self, this: int, node: int, segment: int, at: Any) -> int:
        assert this == self.adapter.address
        self.nodes.append(node)
        at[0].budget, at[0].usage = (self.local, self.host)[segment]
        return self.answers


def test_the_adapter_is_that_of_cudas_gpu() -> None:
    card = Card()
    adapter = card.find()
    assert adapter is not None
    assert (card.factory.num_released, card.adapter.num_released) == (1, 0)
    assert (adapter.free_memory(), adapter.own_memory(), adapter.host_memory()) == (7_500, 2_500, 300)
    assert card.nodes == [1, 1, 1]
    adapter.close()
    assert card.adapter.num_released == 1


def test_what_exceeds_the_budget_is_not_less_than_nothing() -> None:
    card = Card()
    card.local = (2_000, 2_500)
    adapter = card.find()
    assert adapter is not None and adapter.free_memory() == 0


def test_a_question_that_fails_gives_no_figure() -> None:
    adapter = Card(answers=FAILED).find()
    assert adapter is not None
    assert (adapter.free_memory(), adapter.own_memory(), adapter.host_memory()) == (None, None, None)


@pytest.mark.parametrize(
    ("card", "index"),
    [(Card(driver=100), 3), (Card(), 0), (Card(has_luid=False), 3), (Card(factory=FAILED), 3)],
    ids=["no driver", "no such GPU", "TCC", "no DXGI"],
)
def test_no_adapter_is_no_error(card: Card, index: int) -> None:
    assert card.find(index) is None


def test_a_gpu_that_dxgi_does_not_know() -> None:
    card = Card()
    card.driver.cuDeviceGetLuid = lambda luid, nodes, device: 0  # the LUID stays 0
    assert card.find() is None
    assert card.factory.num_released == 1


@pytest.mark.skipif(sys.platform == "win32", reason="there it may have one")
def test_other_systems_have_none() -> None:
    assert open_adapter(0) is None


@pytest.mark.skipif(sys.platform != "win32", reason="needs Windows' own DXGI")
def test_windows_own_dxgi_knows_no_gpu_with_a_made_up_luid() -> None:
    assert find_adapter(Card().driver, ctypes.CDLL("dxgi.dll"), 3) is None


def test_a_machine_without_the_libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise OSError(name)

    monkeypatch.setattr(dxgi.sys, "platform", "win32")
    monkeypatch.setattr(dxgi.ctypes, "CDLL", missing)
    assert open_adapter(0) is None
