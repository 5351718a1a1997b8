"""`Engine`: a loaded model on the kernels; the backend that replays recorded programs.

Three programs share one set of activation buffers: one that ends in the last token's candidates, one that gives every
token's hidden state, and the LM head alone over given hidden states.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from .errors import SessionError
from .kv import KVCache, KVMemory
from .models import Model
from .program.recorder import Arena, Recorder, Recording
from .program.records import SKIP_ROW, KVType, State, attention_scratch_bytes, topk_scratch_bytes
from .runtime import Files, Kernels, OneToken, Progress, Rows
from .session import Candidates, Floats, Want, floats
from .table import Table
from .weights import Weights

TOP_K = 64
"""Candidates that a step leaves for sampling."""
HEAD_ROWS = 8
"""Hidden states that the LM head takes at a time, apart from the last token's."""
CHUNK = 128
"""Tokens of a prompt that run together."""


class Engine:
    """A model in kernel memory. Implements `session.Backend`; make one with `await Engine.load(...)`."""

    def __init__(
        self,
        kernels: Kernels,
        files: Files,
        model: Model,
        max_context: int,
        chunk: int,
        kv: KVType,
        resident: bool,
    ) -> None:
        """Allocates everything but loads nothing; `load` is the way in. resident: keep tables in kernel memory."""
        self.kernels, self.files, self.model, self.config = kernels, files, model, model.config
        self.max_context, self.chunk = max_context, min(chunk, max_context)
        self.profile = False
        """Whether `step` times each kind of op; it then runs record by record, which costs a little."""
        self._kinds: dict[str, float] = {}
        self._kv = KVMemory(kernels, self.config, kv, max_context, self.chunk)
        self._kv_type = kv
        self._weights = Weights(kernels, model)
        self._other_bytes = 0
        self._step_tokens = 0
        self._tables = [model.embed_tokens, *model.more_tables]
        self.tables: dict[str, Table] = {}
        """The tables that stay on the host, by name."""
        self._rows: list[tuple[Rows, int, int, bool]] = []
        self._one_token: OneToken | None = None
        self._arena = self._make_arena(resident)

    @classmethod
    async def load(
        cls,
        kernels: Kernels,
        files: Files,
        model: Model,
        *,
        max_context: int = 2048,
        chunk: int = CHUNK,
        kv: KVType = KVType.F32,
        resident_tables: bool = False,
        progress: Progress | None = None,
    ) -> Engine:
        """Load a model. files: the folder it was read from, opened for these kernels.

        max_context: positions a session may have, at most the config's; chunk: tokens of a prompt run together;
        kv: precision of the KV cache; resident_tables: load the tables into memory instead of fetching their rows.
        Raises CheckpointError, HostError or KernelError.
        """
        max_context = min(max_context, model.config.max_position_embeddings)
        self = cls(kernels, files, model, max_context, chunk, kv, resident_tables)
        await files.load(self._weights.items, progress)
        self._record()
        return self

    @property
    def streamed_bytes(self) -> int:
        """Bytes that one decoded token reads from memory: all linear weights, the head, the norms."""
        return self._weights.streamed_bytes

    @property
    def prof(self) -> dict[str, float]:
        """Seconds in the kernels so far, and, where `profile` was on, in each kind of op."""
        return {"kernels": self.kernels.seconds(), **self._kinds}

    def memory(self) -> dict[str, int]:
        """Bytes of kernel memory: weights, kv (pages so far), buffers (activations, programs, staged rows), total."""
        sizes = {"weights": self._weights.bytes, "kv": self._kv.bytes, "buffers": self._other_bytes}
        return sizes | {"total": sum(sizes.values())}

    # session.Backend

    def new_cache(self) -> KVCache:
        """See Backend."""
        return self._kv.new()

    def clone_cache(self, cache: KVCache, position: int) -> KVCache:
        """See Backend."""
        return self._kv.clone(cache, position)

    def free_cache(self, cache: KVCache) -> None:
        """See Backend."""
        self._kv.free(cache)

    def oldest_kept(self, written: int) -> int:
        """See Backend."""
        return self._kv.oldest_kept(written)

    async def fetch(self, ids: Sequence[int]) -> None:
        """See Backend."""
        for rows, _, _, per_layer in self._rows:
            await rows.fetch([*ids, self.config.pad_token_id] if per_layer else ids)

    def step(self, cache: KVCache, ids: Sequence[int], pos: int, want: Want, given: Mapping[int, Floats]) -> None:
        """See Backend."""
        n = self._step_tokens = len(ids)
        self._kv.reserve(cache, pos + n)
        self._kv.bind(cache)
        recording = self._every if want == Want.HIDDEN else self._last
        self._stage(ids, given, recording)
        self._run(recording, n, pos, recording.body if want == Want.CACHE else recording.length)
        if given:
            self._reset_slots()

    def advance(self, cache: KVCache, token: int, pos: int) -> bool:
        """See Backend."""
        if self._one_token is None or self.profile:
            return False
        self._kv.reserve(cache, pos + 1)
        self._kv.bind(cache)
        return self._one_token(token, pos)

    def hidden(self, n: int) -> Floats:
        """See Backend."""
        width = self.config.hidden_size
        return floats(self.kernels.read(self._every.output, 4 * n * width), (n, width))

    def logits(self) -> Floats:
        """See Backend."""
        return floats(self.kernels.read(self._last.output, 4 * self.config.vocab_size), (self.config.vocab_size,))

    def candidates(self, k: int) -> Candidates:
        """See Backend. Raises SessionError for k over TOP_K."""
        if not 1 <= k <= TOP_K:
            raise SessionError(f"{k} candidates asked for; the kernels keep 1 to {TOP_K}")
        return self._candidates(self._top, k)

    def likeliest(self) -> int:
        """See Backend."""
        return self.kernels.read_word(self._top)

    def logits_of(self, hidden: Floats) -> Floats:
        """See Backend."""
        vocab, out = self.config.vocab_size, []
        for n in self._head_steps(hidden, len(hidden)):
            out.append(self.kernels.read(self._head.output, 4 * n * vocab))
        return floats(b"".join(out), (len(hidden), vocab))

    def nll_of(self, hidden: Floats, targets: Sequence[int]) -> list[float]:
        """See Backend."""
        out: list[float] = []
        for n in self._head_steps(hidden, len(targets)):
            for i in range(n):
                target = self._head.output + 4 * (i * self.config.vocab_size + targets[len(out)])
                (logit,) = struct.unpack("<f", self.kernels.read(target, 4))
                out.append(self._candidates(self._top + i * _TOP_BYTES, 1).log_sum_exp - logit)
        return out

    def embed_scaled(self, token: int) -> Floats:
        """See Backend."""
        self._stage([token], {}, self._last)
        self._run(self._last, 1, 0, 1)  # the first record is the input's EMBED
        return floats(self.kernels.read(self._last.input, 4 * self.config.hidden_size), (self.config.hidden_size,))

    @property
    def traced(self) -> dict[str, Floats]:
        """What the model marked in the last HIDDEN step, by name; needs `record_trace` first."""
        n, kept = self._step_tokens, self._every.traced.items()
        return {name: floats(self.kernels.read(at, 4 * n * width), (n, width)) for name, (at, width) in kept}

    def record_trace(self) -> None:
        """Record the hidden-state program again so that it keeps each layer's input, for `traced`."""
        recorder = Recorder(self.model, self._weights, self._arena, self._kv_type, True, trace=True)
        hidden = self.model.decode(recorder)
        self._every = recorder.finish(self.kernels, hidden, self._alloc(recorder.plan(hidden)))

    def _make_arena(self, resident: bool) -> Arena:
        cfg, state = self.config, self._alloc(State.BYTES)
        tables: dict[str, tuple[int, int]] = {}
        slots = self._alloc(4 * self.chunk)
        ple_slots = self._alloc(4 * self.chunk)
        for i, ref in enumerate(self._tables):
            if resident:
                tables[ref.name] = self._weights.load_table(ref)
                continue
            rows = self.files.open_rows(ref.on_host())
            values, scales = self._alloc(self.chunk * ref.row_bytes), self._alloc(self.chunk * ref.scale_bytes)
            tables[ref.name] = values, scales
            self.tables[ref.name] = Table.Host(ref, rows)
            self._rows.append((rows, values, scales, i > 0))
        scratch = max(
            attention_scratch_bytes(cfg.num_attention_heads, cfg.layer_head_dim(i), self.max_context)
            for i in range(cfg.num_hidden_layers)
        )
        scratch = self._alloc(scratch)
        arena = Arena(self.chunk, state, slots, ple_slots, tables, self._kv.descriptors, scratch)
        self._reset_slots(arena)
        return arena

    def _reset_slots(self, arena: Arena | None = None) -> None:
        """Let token i look up staged row i; resident tables are looked up by token id, written at each step."""
        counted = struct.pack(f"<{self.chunk}I", *range(self.chunk))
        for slots in ((arena or self._arena).slots, (arena or self._arena).ple_slots):
            self.kernels.write(slots, counted)

    def _record(self) -> None:
        self._top = self._alloc(HEAD_ROWS * _TOP_BYTES)
        scratch = self._alloc(topk_scratch_bytes(TOP_K, HEAD_ROWS))
        softcap = self.config.final_logit_softcapping
        last = Recorder(self.model, self._weights, self._arena, self._kv_type, every=False)
        logits = last.head(self.model.decode(last), self.model.head, softcap)
        last.top_k(logits, TOP_K, scratch, self._top)
        every = Recorder(self.model, self._weights, self._arena, self._kv_type, every=True)
        hidden = self.model.decode(every)
        head = Recorder(self.model, self._weights, replace(self._arena, chunk=HEAD_ROWS), self._kv_type, every=True)
        rows = head.head(head.input(self.config.hidden_size), self.model.head, softcap)
        head.top_k(rows, TOP_K, scratch, self._top)
        plans = ((last, logits), (every, hidden), (head, rows))
        buffers = self._alloc(max(recorder.plan(out) for recorder, out in plans))
        self._last, self._every, self._head = (recorder.finish(self.kernels, out, buffers) for recorder, out in plans)
        if self._rows:
            tables = [(rows, values, scales) for rows, values, scales, _ in self._rows]
            self._one_token = self.kernels.one_token(tables, self._last.address, self._last.length, self._arena.state)

    def _stage(self, ids: Sequence[int], given: Mapping[int, Floats], recording: Recording) -> None:
        """Bring the tokens' table rows, and embeddings given by the caller, to where the program reads them."""
        if given:
            self._stage_given(ids, given, recording)
            return
        for rows, values, scales, _ in self._rows:
            rows.stage(ids, values, scales)
        if not self._rows:
            data = struct.pack(f"<{len(ids)}I", *ids)
            self.kernels.write(self._arena.slots, data)
            self.kernels.write(self._arena.ple_slots, data)

    def _stage_given(self, ids: Sequence[int], given: Mapping[int, Floats], recording: Recording) -> None:
        """As `_stage`, with embeddings in the place of some tokens, whose per-layer rows are the pad token's."""
        pad = self.config.pad_token_id
        looked_up = [pad if i in given else t for i, t in enumerate(ids)]
        plain = range(len(ids)) if self._rows else looked_up
        for rows, values, scales, per_layer in self._rows:
            rows.stage(looked_up if per_layer else ids, values, scales)
        slots = [SKIP_ROW if i in given else slot for i, slot in enumerate(plain)]
        self.kernels.write(self._arena.slots, struct.pack(f"<{len(ids)}I", *slots))
        self.kernels.write(self._arena.ple_slots, struct.pack(f"<{len(ids)}I", *plain))
        width = self.config.hidden_size
        for i, x in given.items():
            self.kernels.write(recording.input + 4 * i * width, struct.pack(f"<{width}f", *x))

    def _run(self, recording: Recording, n: int, pos: int, end: int) -> None:
        self.kernels.write_words(self._arena.state, n, pos)
        if self.profile:
            self._run_timed(recording, end)
        else:
            self.kernels.run(recording.address, 0, end, self._arena.state)

    def _run_timed(self, recording: Recording, end: int) -> None:
        for first, last, kind in recording.groups:
            if first < end:
                start = time.perf_counter()
                self.kernels.run(recording.address, first, min(last, end), self._arena.state)
                self._kinds[kind] = self._kinds.get(kind, 0.0) + time.perf_counter() - start

    def _head_steps(self, hidden: Floats, rows: int) -> Iterator[int]:
        """Run the head over the first `rows` hidden states, HEAD_ROWS at a time; yields how many rows each time."""
        data = memoryview(hidden).cast("B")
        width = 4 * self.config.hidden_size
        for at in range(0, rows, HEAD_ROWS):
            n = min(HEAD_ROWS, rows - at)
            self.kernels.write(self._head.input, data[at * width : (at + n) * width])
            self._run(self._head, n, 0, self._head.length)
            yield n

    def _candidates(self, at: int, k: int) -> Candidates:
        data = self.kernels.read(at, _TOP_BYTES)
        ids = struct.unpack_from(f"<{k}I", data)
        logits = struct.unpack_from(f"<{k}f", data, 4 * TOP_K)
        return Candidates(list(ids), list(logits), struct.unpack_from("<f", data, 8 * TOP_K + 4)[0])

    def _alloc(self, nbytes: int) -> int:
        self._other_bytes += nbytes
        return self.kernels.alloc(nbytes)


_TOP_BYTES = 8 * TOP_K + 8
