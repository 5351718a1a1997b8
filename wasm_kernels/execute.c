// The executor: plays a program's records, on one thread of several.
#include "execute.h"

#include "barrier.h"

typedef struct {
  uint32_t code, flags;
} Head;

static const Head *record(uint32_t ops, uint32_t i) { return (const Head *)(u32_at(ops) + i * RECORD_WORDS); }

static Step step_of(uint32_t state, uint32_t flags) {
  const uint32_t tokens = u32_at(state)[0], pos = u32_at(state)[1], last = tokens - 1;
  if (flags & FLAG_LAST) return (Step){1, pos + last, last, last};
  return (Step){tokens, pos, 0, last};
}

static void play(const Head *op, uint32_t state, Thread th) {
  const Step step = step_of(state, op->flags);
  switch (op->code) {
    case OP_EMBED: return op_embed((const EmbedOp *)op, step, th);
    case OP_ROPE_TABLE: return op_rope_table((const RopeTableOp *)op, step, th);
    case OP_NORM: return op_norm((const NormOp *)op, step, th);
    case OP_LINEAR: return op_linear((const LinearOp *)op, step, th);
    case OP_GATED: return op_gated((const GatedOp *)op, step, th);
    case OP_HEADS: return op_heads((const HeadsOp *)op, step, th);
    case OP_ATTENTION: return op_attention((const AttentionOp *)op, step, th);
    case OP_ATTENTION_MERGE: return op_attention_merge((const AttentionMergeOp *)op, step, th);
    case OP_ACT_MUL: return op_act_mul((const ActMulOp *)op, step, th);
    case OP_SELECT_LAST: return op_select_last((const SelectLastOp *)op, step, th);
    case OP_SOFTCAP: return op_softcap((const SoftcapOp *)op, step, th);
    case OP_TOPK: return op_topk((const TopkOp *)op, step, th);
    case OP_TOPK_MERGE: return op_topk_merge((const TopkMergeOp *)op, step, th);
    case OP_REPACK: return op_repack((const RepackOp *)op, th);
    default: __builtin_trap();
  }
}

// What a thread will read for the next product after record i, if that is with one token.
static Ahead ahead_of(uint32_t ops, uint32_t i, uint32_t last, uint32_t state, Thread th) {
  while (++i < last) {
    const Head *op = record(ops, i);
    if (op->code != OP_LINEAR && op->code != OP_GATED) continue;
    if (step_of(state, op->flags).tokens > 1) break;
    return op->code == OP_LINEAR ? linear_ahead((const LinearOp *)op, th) : gated_ahead((const GatedOp *)op, th);
  }
  return (Ahead){0};
}

int execute(uint32_t ops, uint32_t first, uint32_t last, uint32_t state, uint32_t tid, uint32_t n) {
  Ahead ahead = {0};
  for (uint32_t i = first; i < last; i++) {
    const Head *op = record(ops, i);
    const Thread th = {tid, n, &taken[i % COUNTERS]};
    play(op, state, th);
    if (n == 1) taken[i % COUNTERS] = 0;
    if (n > 1 && (op->flags & FLAG_BARRIER)) {
      const Ahead next = ahead_of(ops, i, last, state, th);
      if (next.end != ahead.end) ahead = next;  // else a part of it has been read at the barrier before
      if (!barrier(tid, n, &ahead)) return 0;
    }
  }
  return 1;
}

// Thread tid of n plays records [first, last) of the program at `ops`. With n > 1 all n threads must be in here.
EXPORT(run) void run(uint32_t ops, uint32_t first, uint32_t last, uint32_t state, uint32_t tid, uint32_t n) {
  execute(ops, first, last, state, tid, n);
}

// Record i alone, without its barrier: a caller that has one thread plays n of them by calling this for each tid.
EXPORT(phase) void phase(uint32_t ops, uint32_t i, uint32_t state, uint32_t tid, uint32_t n) {
  play(record(ops, i), state, (Thread){tid, n, &taken[0]});
}

// memmove inside kernel memory.
EXPORT(copy) void copy(uint32_t dst, uint32_t src, uint32_t bytes) {
  __builtin_memmove(bytes_at(dst), bytes_at(src), bytes);
}
