"""KV caches in kernel memory, as pages of `records.PAGE` positions.

A full layer's pages are added as the sequence grows; nothing is ever moved. A sliding layer has a ring of pages that
holds its window, one step's tokens, and a page of room to truncate.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from .config import TextConfig
from .enums import KVType
from .program.records import PAGE, CacheDescriptor, page_bytes
from .runtime import Kernels


@dataclass
class KVCache:
    """One session's caches: for each owning layer, the addresses of its pages in order of first use."""

    tables: int
    """Address of all page tables, layer after layer."""
    pages: dict[int, list[int]]
    positions: int = 0
    """Positions that have pages everywhere."""


class KVMemory:
    """Makes and frees the caches of one model's sessions."""

    def __init__(self, kernels: Kernels, config: TextConfig, kv: KVType, max_context: int, chunk: int) -> None:
        """Room for sequences of max_context positions, fed at most chunk at a time."""
        self._kernels = kernels
        self._free: dict[int, list[int]] = {}
        self.bytes = 0
        """Bytes of kernel memory taken for pages and page tables."""
        self._page_bytes: dict[int, int] = {}
        self._counts: dict[int, int] = {}
        full = (max_context + PAGE - 1) // PAGE
        self._ring = min(full, (config.sliding_window + chunk + PAGE - 2) // PAGE + 2)
        for i in range(config.num_hidden_layers):
            if not config.is_kv_shared(i):
                self._page_bytes[i] = page_bytes(config.layer_n_kv(i), config.layer_head_dim(i), kv)
                self._counts[i] = self._ring if config.is_sliding(i) else full
        self._has_rings = any(config.is_sliding(i) for i in self._counts)
        self._descriptors = kernels.alloc(CacheDescriptor.BYTES * len(self._counts))
        self.descriptors = {
            layer: self._descriptors + i * CacheDescriptor.BYTES for i, layer in enumerate(self._counts)
        }
        """Address of each owning layer's descriptor; `bind` says which session they describe."""
        self._bound: KVCache | None = None

    def oldest_kept(self, written: int) -> int:
        """The oldest position that rings still hold after `written` positions."""
        return max(0, written - self._ring * PAGE) if self._has_rings else 0

    def new(self) -> KVCache:
        """An empty cache: page tables, no pages."""
        return KVCache(self._take(4 * sum(self._counts.values())), {layer: [] for layer in self._counts})

    def reserve(self, cache: KVCache, positions: int) -> None:
        """Give a cache pages for `positions` positions. Raises KernelError when memory is used up."""
        if positions <= cache.positions:
            return
        need = (positions + PAGE - 1) // PAGE
        table = cache.tables
        for layer, count in self._counts.items():
            pages = cache.pages[layer]
            while len(pages) < min(need, count):
                page = self._take(self._page_bytes[layer])
                self._kernels.write(table + 4 * len(pages), struct.pack("<I", page))
                pages.append(page)
            table += 4 * count
        cache.positions = need * PAGE

    def bind(self, cache: KVCache) -> None:
        """Make the descriptors, which programs read, describe this cache."""
        if cache is self._bound:
            return
        data, table = b"", cache.tables
        for count in self._counts.values():
            data += struct.pack("<II", table, count).ljust(CacheDescriptor.BYTES, b"\0")
            table += 4 * count
        self._kernels.write(self._descriptors, data)
        self._bound = cache

    def clone(self, cache: KVCache, positions: int) -> KVCache:
        """A cache with copies of the pages that `positions` positions use."""
        other = self.new()
        self.reserve(other, positions)
        for layer, pages in other.pages.items():
            for page, source in zip(pages, cache.pages[layer], strict=False):
                self._kernels.copy(page, source, self._page_bytes[layer])
        return other

    def free(self, cache: KVCache) -> None:
        """Take a cache's memory back; it must not be used again."""
        for layer, pages in cache.pages.items():
            self._free.setdefault(self._page_bytes[layer], []).extend(pages)
        self._free.setdefault(4 * sum(self._counts.values()), []).append(cache.tables)
        if self._bound is cache:
            self._bound = None

    def _take(self, nbytes: int) -> int:
        free = self._free.get(nbytes)
        if free:
            return free.pop()
        self.bytes += nbytes
        return self._kernels.alloc(nbytes)
