"""What sessions keep between steps, in kernel memory: pages of `records.PAGE` positions, and states of a fixed size.

A page is added as the sequence grows, and nothing is ever moved. A layer that looks at a window has a ring of pages
that holds the window, one step's tokens, and a page of room to go back. A state of a fixed size is one page.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

from .enums import KVType
from .ops import FixedState, KVPages, LayerState
from .program.records import PAGE, CacheDescriptor, page_bytes
from .program.symbols import Symbol
from .runtime import Kernels


@dataclass
class KVCache:
    """One session's states: for each, the addresses of its pages in order of first use."""

    tables: int
    """Address of all page tables, state after state."""
    pages: list[list[int]]
    room: int = 0
    """Positions that have pages everywhere."""
    written: int = 0
    """One past the newest position written since the sequence was last begun: what has been overwritten follows."""


@dataclass(frozen=True)
class _Shape:
    """One state's pages: bytes of each and how many at most."""

    page_bytes: int
    count: int


class KVMemory:
    """Makes and frees the caches of one model's sessions."""

    def __init__(
        self, kernels: Kernels, states: Sequence[LayerState], kv: KVType, max_context: int, chunk: int
    ) -> None:
        """Room for sequences of max_context positions, fed at most chunk at a time, by layers that keep `states`."""
        self._kernels, self._states = kernels, states
        self._free: dict[int, list[int]] = {}
        self.bytes = 0
        """Bytes of kernel memory taken for pages and page tables."""
        self._shapes = [_shape(state, kv, max_context, chunk) for state in states]
        self._table_bytes = 4 * sum(shape.count for shape in self._shapes)
        self._address = kernels.alloc(CacheDescriptor.BYTES * len(states))
        self._bound: KVCache | None = None

    def places(self) -> dict[Symbol, float]:
        """Where programs find each state's descriptor; `bind` says which session they describe."""
        return {state: self._address + i * CacheDescriptor.BYTES for i, state in enumerate(self._states)}

    def new(self) -> KVCache:
        """An empty cache: page tables, no pages."""
        return KVCache(self._take(self._table_bytes), [[] for _ in self._shapes])

    def reserve(self, cache: KVCache, positions: int) -> None:
        """Give a cache pages for `positions` positions, which are about to be written. Raises KernelError when memory
        is used up."""
        if positions > cache.room:
            self._grow(cache, (positions + PAGE - 1) // PAGE)
        if positions > cache.written:
            cache.written = positions

    def rewind(self, cache: KVCache, position: int) -> int:
        """Go back to `position`, or, if what it takes to go on from there has been overwritten, to the beginning.

        Returns the positions that the cache still has: `position` or 0.
        """
        if all(_keeps(s, shape, cache.written, position) for s, shape in zip(self._states, self._shapes, strict=True)):
            return position
        cache.written = 0
        self._clear(cache)
        return 0

    def bind(self, cache: KVCache) -> None:
        """Make the descriptors, which programs read, describe this cache."""
        if cache is self._bound:
            return
        data, table = b"", cache.tables
        for shape in self._shapes:
            data += struct.pack("<II", table, shape.count).ljust(CacheDescriptor.BYTES, b"\0")
            table += 4 * shape.count
        self._kernels.write(self._address, data)
        self._bound = cache

    def clone(self, cache: KVCache, positions: int) -> KVCache:
        """A cache with copies of the pages that `positions` positions use."""
        other = self.new()
        self.reserve(other, positions)
        other.written = cache.written
        for pages, sources, shape in zip(other.pages, cache.pages, self._shapes, strict=True):
            for page, source in zip(pages, sources, strict=False):
                self._kernels.copy(page, source, shape.page_bytes)
        return other

    def free(self, cache: KVCache) -> None:
        """Take a cache's memory back; it must not be used again."""
        for pages, shape in zip(cache.pages, self._shapes, strict=True):
            self._free.setdefault(shape.page_bytes, []).extend(pages)
        self._free.setdefault(self._table_bytes, []).append(cache.tables)
        if self._bound is cache:
            self._bound = None

    def _grow(self, cache: KVCache, need: int) -> None:
        begun = cache.room > 0
        table = cache.tables
        for pages, shape in zip(cache.pages, self._shapes, strict=True):
            while len(pages) < min(need, shape.count):
                page = self._take(shape.page_bytes)
                self._kernels.write(table + 4 * len(pages), struct.pack("<I", page))
                pages.append(page)
            table += 4 * shape.count
        cache.room = need * PAGE
        if not begun:
            self._clear(cache)

    def _clear(self, cache: KVCache) -> None:
        """Begin states of a fixed size anew. Pages of positions are read only where they have been written."""
        for state, pages in zip(self._states, cache.pages, strict=True):
            if isinstance(state, FixedState):
                for page in pages:
                    self._kernels.write(page, bytes(state.nbytes))

    def _take(self, nbytes: int) -> int:
        free = self._free.get(nbytes)
        if free:
            return free.pop()
        self.bytes += nbytes
        return self._kernels.alloc(nbytes)


def _shape(state: LayerState, kv: KVType, max_context: int, chunk: int) -> _Shape:
    if isinstance(state, FixedState):
        return _Shape(state.nbytes, 1)
    assert isinstance(state, KVPages)
    full = (max_context + PAGE - 1) // PAGE
    ring = (state.window + chunk + PAGE - 2) // PAGE + 2
    return _Shape(page_bytes(state.heads, state.head_dim, kv), min(full, ring) if state.window else full)


def _keeps(state: LayerState, shape: _Shape, written: int, position: int) -> bool:
    """Whether a state that has been written up to `written` can go on from `position`."""
    if isinstance(state, FixedState):
        return position == written
    assert isinstance(state, KVPages)
    oldest_kept = written - shape.count * PAGE
    oldest_seen = position - state.window + 1 if state.window else 0
    return oldest_kept <= max(0, oldest_seen)
