"""Recording, with no kernels and no memory: what a program says, how it is planned, and how it is encoded."""

from __future__ import annotations

import struct
from collections import Counter
from pathlib import Path

import pytest
from oxinfer_web.checkpoint import Checkpoint
from oxinfer_web.enums import KVType
from oxinfer_web.linear import Lin
from oxinfer_web.models import Model, config_from_folder, find_all, load_model
from oxinfer_web.ops import LayerState, Norm, Scalar
from oxinfer_web.program.encode import records_of
from oxinfer_web.program.planning import place, stages
from oxinfer_web.program.recorder import Program, Recorder
from oxinfer_web.program.records import LAST, RECORD_BYTES, RECORDS, Bind, c_header, encode
from oxinfer_web.program.symbols import Area, Buffer, Number, Symbol, TablePart, Vector, Weight
from oxinfer_web.table import TableRef
from support import FIXTURES, TINY

CHUNK = 16


def model_of(case: str) -> Model:
    return load_model(Checkpoint.open(FIXTURES / case), config_from_folder(FIXTURES / case))


def recorded(case: str, every: bool, chunk: int = CHUNK) -> tuple[Model, Program]:
    model = model_of(case)
    r = Recorder(chunk=chunk, positions=2048, kv=KVType.F32, every=every)
    logits = r.head(model.decode(r), model.head, model.config.final_logit_softcapping)
    r.top_k(logits, 64)
    return model, r.finish(logits)


def symbols(program: Program, kind: type) -> list[Symbol]:
    return [s for e in program.entries for s in e.operands.values() if isinstance(s, kind)]


@pytest.mark.parametrize("case", TINY)
@pytest.mark.parametrize("every", [False, True])
def test_what_is_read_was_written(case: str, every: bool) -> None:
    """By an earlier op; and each op's activations are where its row in the table has some."""
    _, program = recorded(case, every)
    written: set[Buffer] = set()
    for e in program.entries:
        known = dict(e.record.operands)
        assert set(e.operands) <= set(known), e.name
        activations = {name for name, operand in e.operands.items() if isinstance(operand, Buffer)}
        assert all(known[name] for name in activations), e.name
        assert set(e.reads()) <= written, e.name
        written.update(e.writes())
    assert program.output in written and program.input in written


@pytest.mark.parametrize("case", TINY)
@pytest.mark.parametrize("every", [False, True])
def test_a_program_uses_all_of_its_model(case: str, every: bool) -> None:
    model, program = recorded(case, every)
    assert {s.name for s in symbols(program, Weight)} == {lin.name for lin in find_all(model, Lin)}
    assert {s.name for s in symbols(program, Vector)} == {n.weight.name for n in find_all(model, Norm) if n.weight}
    assert {s.name for s in symbols(program, Number)} == {s.value.name for s in find_all(model, Scalar)}
    assert {s.name for s in symbols(program, TablePart)} == {table.name for table in find_all(model, TableRef)}
    fills = Counter((e.operands["cache"], e.operands["bind"]) for e in program.entries if e.fills_state)
    states = set(find_all(model, LayerState))
    assert fills == {(state, bind): 1 for state in states for bind in (Bind.KEY, Bind.VALUE)}
    assert set(symbols(program, Area)) == {Area.SCRATCH, Area.CANDIDATES} and program.scratch_bytes > 0


@pytest.mark.parametrize("case", TINY)
@pytest.mark.parametrize("every", [False, True])
def test_live_buffers_do_not_overlap(case: str, every: bool) -> None:
    """From a first write to the last read, nothing else is written there."""
    _, program = recorded(case, every)
    numbers = stages(program.entries)
    lives: dict[Buffer, tuple[int, int]] = {}
    for e, stage in zip(program.entries, numbers, strict=True):
        for b in e.operands.values():
            if isinstance(b, Buffer):
                lives[b] = lives.get(b, (stage, 0))[0], numbers[-1] if b.pinned else stage
    assert len(lives) > 20

    def end(b: Buffer) -> int:
        return b.offset + b.row_bytes * (1 if b.single else CHUNK)

    for a, (a0, a1) in lives.items():
        assert a.offset % 64 == 0 and end(a) <= program.buffer_bytes
        for b, (b0, b1) in lives.items():
            if a is not b and a0 <= b1 and b0 <= a1:
                assert end(a) <= b.offset or end(b) <= a.offset


def test_the_plan_reuses_memory() -> None:
    _, program = recorded("gemma4_e2b", True)
    buffers = {b for e in program.entries for b in e.writes()}
    assert program.buffer_bytes < 0.25 * sum(b.row_bytes * CHUNK for b in buffers)
    assert place(program.entries, 2 * CHUNK) > program.buffer_bytes


@pytest.mark.parametrize(("case", "owners"), [("gemma4_e2b", 4), ("gemma3", 6), ("llama", 4)])
def test_what_no_cache_depends_on_runs_for_the_last_token_only(case: str, owners: int) -> None:
    _, program = recorded(case, False)
    entries, body = program.entries, program.body
    fills = [i for i, e in enumerate(entries) if e.name == "HEADS" and e.operands["bind"] == Bind.VALUE]
    assert len(fills) == owners and body == fills[-1] + 1
    assert all(e.last or e.name == "ROPE_TABLE" for e in entries[body:])
    before = [e for e in entries[:body] if e.last]
    assert {e.name for e in before} <= {"SELECT_LAST", "HEADS"}  # the last owner's own queries
    attention = [e.last for e in entries if e.name == "ATTENTION"]
    assert attention.count(False) == owners - 1


def test_hidden_states_are_for_all_tokens() -> None:
    _, program = recorded("gemma4_e2b", True)
    assert not any(e.last for e in program.entries)


@pytest.mark.parametrize("case", TINY)
def test_encoding_gives_every_symbol_its_place(case: str) -> None:
    """With places made up here: each operand's word is its symbol's address, its buffer's, or the number itself."""
    _, program = recorded(case, False)
    wanted = {s for e in program.entries for s in e.operands.values() if not isinstance(s, int | float | Buffer)}
    places: dict[Symbol, float] = {s: 0.5 if isinstance(s, Number) else 64 * i for i, s in enumerate(wanted, 1)}
    base = 1 << 20
    data = records_of(program, places, base)
    assert len(data) == RECORD_BYTES * len(program.entries)
    for i, e in enumerate(program.entries):
        code, flags = struct.unpack_from("<II", data, i * RECORD_BYTES)
        assert code == e.record.code and bool(flags & LAST) == e.last
        for j, (name, ctype) in enumerate(e.record.words()):
            (word,) = struct.unpack_from("<f" if ctype == "float" else "<I", data, i * RECORD_BYTES + 8 + 4 * j)
            operand = e.operands.get(name, 0)
            if isinstance(operand, Buffer):
                assert word == base + operand.offset + e.shifts.get(name, 0)
            else:
                want = operand if isinstance(operand, int | float) else places[operand]
                assert word == pytest.approx(float(want), rel=1e-6)
    del places[next(s for s in wanted if isinstance(s, LayerState))]
    with pytest.raises(KeyError, match="KVPages"):
        records_of(program, places, base)


def test_records_are_one_size_and_refuse_unknown_operands() -> None:
    for name, record in RECORDS.items():
        assert len(encode(name, 0, **{f: 1 for f, _ in record.words()})) == RECORD_BYTES
    with pytest.raises(KeyError, match="EMBED has no operand depth"):
        encode("EMBED", depth=1)


def test_a_row_of_the_table_is_whole() -> None:
    """Marks, kinds and splits are those that are documented, and every op that writes says so."""
    for record in RECORDS.values():
        assert {mark for _, mark in record.operands} <= {"", "f32", "in", "all", "out", "out?", "inout", "fills"}
        assert record.kind in ("linear", "attention", "rows", "head", "load")
        assert record.split in ("token", "head", "kernel")
        assert all(mark in ("out", "out?") for name, mark in record.operands if name == "dst_q" and mark)


def test_the_c_header_is_in_sync() -> None:
    header = Path(__file__).parents[2] / "wasm_kernels" / "records.h"
    assert header.read_text() == c_header(), "run: ./build.sh kernels"
