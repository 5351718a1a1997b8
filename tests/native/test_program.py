"""Recording: buffers that live at the same time do not overlap, and what nobody reads is not written."""

from __future__ import annotations

from pathlib import Path

import oxinfer_web as ox
import pytest
from oxinfer_web.program import Buffer, Recorder, _barriers, _plan
from oxinfer_web.records import BARRIER, LAST, RECORD_BYTES, RECORDS, c_header, encode
from support import FIXTURES, TINY


def recorder(case: str, every: bool) -> tuple[Recorder, Buffer]:
    engine = ox.load(FIXTURES / case, chunk=16)
    r = Recorder(engine.model, engine._weights, engine._arena, engine._kv_type, every)
    return r, r.head(engine.model.decode(r), engine.model.head, engine.config.final_logit_softcapping)


@pytest.mark.parametrize("case", TINY)
@pytest.mark.parametrize("every", [False, True])
def test_live_buffers_do_not_overlap(case: str, every: bool) -> None:
    """Checked from the records themselves: between a write and its last read, nothing else is written there."""
    r, out = recorder(case, every)
    out.pinned = True
    total = _plan(r._entries, r._buffers)
    barriers = _barriers(r._entries)
    stage, stages = 0, []
    for barrier in barriers:
        stages.append(stage)
        stage += barrier == BARRIER
    lives: dict[int, tuple[Buffer, int, int]] = {}
    for i, entry in enumerate(r._entries):
        for operand in entry.operands.values():
            if isinstance(operand, Buffer):
                _, first, _ = lives.get(id(operand), (operand, stages[i], 0))
                lives[id(operand)] = (operand, first, stage if operand.pinned else stages[i])
    assert len(lives) > 20
    for a, a0, a1 in lives.values():
        assert a.address % 64 == 0 and a.address + a.nbytes <= total
        for b, b0, b1 in lives.values():
            if a is not b and a0 <= b1 and b0 <= a1:
                assert a.address + a.nbytes <= b.address or b.address + b.nbytes <= a.address


def test_the_plan_reuses_memory() -> None:
    r, out = recorder("gemma4_e2b", True)
    total = r.planned_bytes(out)
    assert total < 0.25 * sum(b.nbytes for b in r._buffers)


def test_sharing_layers_run_for_the_last_token_only() -> None:
    r, _ = recorder("gemma4_e2b", False)
    at = [i for i, e in enumerate(r._entries) if e.name == "SELECT_LAST"]
    assert len(at) == 2 and r._body == at[0]
    for entry in r._entries[at[-1] + 1 :]:
        assert entry.flags & LAST or entry.name == "ROPE_TABLE"
        assert not (entry.name == "HEADS" and entry.operands.get("cache"))


def test_records_are_one_size_and_refuse_unknown_operands() -> None:
    for name, record in RECORDS.items():
        assert len(encode(name, 0, **{f: 1 for f, _ in record.words()})) == RECORD_BYTES
    with pytest.raises(KeyError, match="EMBED has no operand depth"):
        encode("EMBED", depth=1)


def test_the_c_header_is_in_sync() -> None:
    header = Path(__file__).parents[2] / "wasm_kernels" / "records.h"
    assert header.read_text() == c_header(), "run: python py/oxinfer_web/records.py > wasm_kernels/records.h"
