"""Recording: buffers that live at the same time do not overlap, and what nobody reads is not written."""

from __future__ import annotations

from pathlib import Path

import oxinfer_web as ox
import pytest
from oxinfer_web.program.planning import Buffer, place, stages
from oxinfer_web.program.recorder import Recorder
from oxinfer_web.program.records import RECORD_BYTES, RECORDS, Bind, c_header, encode
from support import FIXTURES, TINY

CHUNK = 16


def planned(case: str, every: bool) -> tuple[Recorder, int]:
    engine = ox.load(FIXTURES / case, chunk=CHUNK)
    r = Recorder(engine.model, engine._weights, engine._arena, engine._kv_type, every)
    total = r.plan(r.head(engine.model.decode(r), engine.model.head, engine.config.final_logit_softcapping))
    return r, total


@pytest.mark.parametrize("case", TINY)
@pytest.mark.parametrize("every", [False, True])
def test_live_buffers_do_not_overlap(case: str, every: bool) -> None:
    """Checked from the records themselves: from a first write to the last read, nothing else is written there."""
    r, total = planned(case, every)
    numbers = stages(r._entries)
    lives: dict[Buffer, tuple[int, int]] = {}
    for e, stage in zip(r._entries, numbers, strict=True):
        for b in e.operands.values():
            if isinstance(b, Buffer):
                lives[b] = lives.get(b, (stage, 0))[0], numbers[-1] if b.pinned else stage
    assert len(lives) > 20

    def end(b: Buffer) -> int:
        return b.address + b.row_bytes * (1 if b.single else CHUNK)

    for a, (a0, a1) in lives.items():
        assert a.address % 64 == 0 and end(a) <= total
        for b, (b0, b1) in lives.items():
            if a is not b and a0 <= b1 and b0 <= a1:
                assert end(a) <= b.address or end(b) <= a.address


def test_the_plan_reuses_memory() -> None:
    r, total = planned("gemma4_e2b", True)
    buffers = {b for e in r._entries for b in e.writes()}
    assert total < 0.25 * sum(b.row_bytes * CHUNK for b in buffers)
    assert place(r._entries, 2 * CHUNK) > total


@pytest.mark.parametrize(("case", "owners"), [("gemma4_e2b", 4), ("gemma3", 6), ("llama", 4)])
def test_what_no_cache_depends_on_runs_for_the_last_token_only(case: str, owners: int) -> None:
    r, _ = planned(case, False)
    fills = [i for i, e in enumerate(r._entries) if e.name == "HEADS" and e.operands["bind"] == Bind.VALUE]
    assert len(fills) == owners and r._body == fills[-1] + 1
    assert all(e.last or e.name == "ROPE_TABLE" for e in r._entries[r._body :])
    before = [e for e in r._entries[: r._body] if e.last]
    assert {e.name for e in before} <= {"SELECT_LAST", "HEADS"}  # the last owner's own queries
    attention = [e.last for e in r._entries if e.name == "ATTENTION"]
    assert attention.count(False) == owners - 1


def test_hidden_states_are_for_all_tokens() -> None:
    r, _ = planned("gemma4_e2b", True)
    assert not any(e.last for e in r._entries)


def test_records_are_one_size_and_refuse_unknown_operands() -> None:
    for name, record in RECORDS.items():
        assert len(encode(name, 0, **{f: 1 for f, _ in record.words()})) == RECORD_BYTES
    with pytest.raises(KeyError, match="EMBED has no operand depth"):
        encode("EMBED", depth=1)


def test_the_c_header_is_in_sync() -> None:
    header = Path(__file__).parents[2] / "wasm_kernels" / "records.h"
    assert header.read_text() == c_header(), "run: python py/oxinfer_web/program/records.py > wasm_kernels/records.h"
