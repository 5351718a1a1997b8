"""`Engine`: a loaded model on the kernels; the backend that replays recorded programs.

Three programs share one set of activation buffers: one that ends in the last token's candidates, one that gives every
token's hidden state, and the LM head alone over given hidden states.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator, Mapping, Sequence

from .backend import TOP_K, Candidates, Floats, Want, floats
from .enums import KVType
from .errors import NumericError, SessionError
from .kv import KVCache, KVMemory
from .models import Model, find_all
from .ops import LayerState
from .program.encode import Encoded, write
from .program.recorder import Program, Recorder
from .program.records import NO_ID, State
from .program.symbols import Area, Frequencies
from .runtime import Files, Kernels, OneToken, Progress
from .staging import Staging
from .table import TableRef
from .tokens import check_count
from .weights import Weights

HEAD_ROWS = 8
"""Hidden states that the LM head takes at a time, apart from the last token's."""
CHUNK = 128
"""Tokens of a prompt that run together."""


class Engine:
    """A model in kernel memory. Implements `backend.Backend`; make one with `await Engine.load(...)`."""

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
        states = list(dict.fromkeys(find_all(model, LayerState)))
        self._kv = KVMemory(kernels, states, kv, max_context, self.chunk)
        self._kv_type = kv
        self._weights = Weights(kernels, model)
        self._staging = Staging(kernels, files, self._weights, list(find_all(model, TableRef)), self.chunk, resident)
        self._other_bytes = 0
        self._step_tokens = 0
        self.tables = self._staging.tables
        """The tables that stay on the host, by name."""
        self._one_token: OneToken | None = None
        self._state = self._alloc(State.BYTES)
        self._places = self._kv.places() | self._staging.places()

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
        Raises CheckpointError, HostError or KernelError, and SessionError for a max_context, a chunk or a kv that is
        none.
        """
        check_count("max_context", max_context, 1)
        check_count("chunk", chunk, 1)
        if not isinstance(kv, KVType):
            raise SessionError(f"kv {kv!r} must be f32 or f16 (in Python KVType.F32 or KVType.F16)")
        max_context = min(max_context, model.config.max_position_embeddings)
        self = cls(kernels, files, model, max_context, chunk, kv, resident_tables)
        programs = self._record()
        self._place_areas(programs)
        await files.load(self._weights.items, progress)
        self._encode(programs)
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
        sizes = {
            "weights": self._weights.bytes,
            "kv": self._kv.bytes,
            "buffers": self._other_bytes + self._staging.bytes,
        }
        return sizes | {"total": sum(sizes.values())}

    # backend.Backend

    def new_cache(self) -> KVCache:
        """See Backend."""
        return self._kv.new()

    def clone_cache(self, cache: KVCache, position: int) -> KVCache:
        """See Backend."""
        return self._kv.clone(cache, position)

    def free_cache(self, cache: KVCache) -> None:
        """See Backend."""
        self._kv.free(cache)

    def rewind(self, cache: KVCache, position: int) -> int:
        """See Backend."""
        return self._kv.rewind(cache, position)

    async def fetch(self, ids: Sequence[int]) -> None:
        """See Backend."""
        await self._staging.fetch(ids)

    def step(self, cache: KVCache, ids: Sequence[int], pos: int, want: Want, given: Mapping[int, Floats]) -> None:
        """See Backend."""
        n = self._step_tokens = len(ids)
        self._kv.reserve(cache, pos + n)
        self._kv.bind(cache)
        program = self._every if want == Want.HIDDEN else self._last
        end = program.body if want == Want.CACHE else program.length
        if not given:
            self._staging.stage(ids)
            self._run(program, n, pos, end)
            return
        width = self.config.hidden_size
        try:
            self._staging.stage(ids, given)
            for i, x in given.items():
                self.kernels.write(program.input + 4 * i * width, struct.pack(f"<{width}f", *x))
            self._run(program, n, pos, end)
        finally:
            self._staging.reset()

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
        """See Backend."""
        return self._candidates(self._top, k)

    def likeliest(self) -> int:
        """See Backend."""
        token = self.kernels.read_word(self._top)
        if token == NO_ID:
            raise NumericError
        return token

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
        self._staging.stage([token])
        self._run(self._last, 1, 0, 1)  # the first record is the input's EMBED
        return floats(self.kernels.read(self._last.input, 4 * self.config.hidden_size), (self.config.hidden_size,))

    @property
    def traced(self) -> dict[str, Floats]:
        """What the model marked in the last HIDDEN step, by name; needs `record_trace` first."""
        n, kept = self._step_tokens, self._every.traced.items()
        return {name: floats(self.kernels.read(at, 4 * n * width), (n, width)) for name, (at, width) in kept}

    def record_trace(self) -> None:
        """Record the hidden-state program again so that it keeps each layer's input, for `traced`."""
        recorder = self._recorder(every=True, trace=True)
        program = recorder.finish(self.model.decode(recorder))
        self._every = write(self.kernels, program, self._places, self._alloc(program.buffer_bytes))

    def _recorder(self, every: bool, chunk: int | None = None, trace: bool = False) -> Recorder:
        return Recorder(
            chunk=chunk or self.chunk,
            positions=self.max_context,
            kv=self._kv_type,
            every=every,
            trace=trace,
        )

    def _record(self) -> tuple[Program, Program, Program]:
        softcap = self.config.final_logit_softcapping
        last = self._recorder(every=False)
        logits = last.head(self.model.decode(last), self.model.head, softcap)
        last.top_k(logits, TOP_K)
        every = self._recorder(every=True)
        hidden = self.model.decode(every)
        head = self._recorder(every=True, chunk=HEAD_ROWS)
        rows = head.head(head.input(self.config.hidden_size), self.model.head, softcap)
        head.top_k(rows, TOP_K)
        return last.finish(logits), every.finish(hidden), head.finish(rows)

    def _place_areas(self, programs: Sequence[Program]) -> None:
        """Memory that the programs share, as only one runs at a time, and the constants that they read."""
        for rope in {rope for program in programs for rope in program.ropes}:
            data = struct.pack(f"<{len(rope.inv_freq)}f", *rope.inv_freq)
            self._places[Frequencies(rope)] = addr = self._alloc(len(data))
            self.kernels.write(addr, data)
        self._top = self._alloc(HEAD_ROWS * _TOP_BYTES)
        scratch = self._alloc(max(program.scratch_bytes for program in programs))
        self._places |= {Area.CANDIDATES: self._top, Area.SCRATCH: scratch}
        self._buffers = self._alloc(max(program.buffer_bytes for program in programs))

    def _encode(self, programs: Sequence[Program]) -> None:
        self._places |= self._weights.places()
        self._last, self._every, self._head = (
            write(self.kernels, program, self._places, self._buffers) for program in programs
        )
        if tables := self._staging.on_host():
            self._one_token = self.kernels.one_token(tables, self._last.address, self._last.length, self._state)

    def _run(self, program: Encoded, n: int, pos: int, end: int) -> None:
        self.kernels.write_words(self._state, n, pos)
        if self.profile:
            self._run_timed(program, end)
        else:
            self.kernels.run(program.address, 0, end, self._state)

    def _run_timed(self, program: Encoded, end: int) -> None:
        for first, last, kind in program.groups:
            if first < end:
                start = time.perf_counter()
                self.kernels.run(program.address, first, min(last, end), self._state)
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
        if ids[0] == NO_ID:
            raise NumericError
        logits = struct.unpack_from(f"<{k}f", data, 4 * TOP_K)
        return Candidates(list(ids), list(logits), struct.unpack_from("<f", data, 8 * TOP_K + 4)[0])

    def _alloc(self, nbytes: int) -> int:
        self._other_bytes += nbytes
        return self.kernels.alloc(nbytes)


_TOP_BYTES = 8 * TOP_K + 8
