;; Reads memory as fast as plain 128-bit loads do: what a kernel that reads every weight once cannot outrun.
(module
  (import "env" "memory" (memory 1 65536 shared))

  ;; The xor of all 128-bit words in [at, end), folded to 64 bits; end - at is a multiple of 128.
  (func (export "read") (param $at i32) (param $end i32) (result i64)
    (local $a v128) (local $b v128) (local $c v128) (local $d v128)
    (loop $next
      (local.set $a (v128.xor (local.get $a) (v128.load (local.get $at))))
      (local.set $b (v128.xor (local.get $b) (v128.load offset=16 (local.get $at))))
      (local.set $c (v128.xor (local.get $c) (v128.load offset=32 (local.get $at))))
      (local.set $d (v128.xor (local.get $d) (v128.load offset=48 (local.get $at))))
      (local.set $a (v128.xor (local.get $a) (v128.load offset=64 (local.get $at))))
      (local.set $b (v128.xor (local.get $b) (v128.load offset=80 (local.get $at))))
      (local.set $c (v128.xor (local.get $c) (v128.load offset=96 (local.get $at))))
      (local.set $d (v128.xor (local.get $d) (v128.load offset=112 (local.get $at))))
      (br_if $next (i32.lt_u (local.tee $at (i32.add (local.get $at) (i32.const 128))) (local.get $end))))
    (local.set $a (v128.xor (v128.xor (local.get $a) (local.get $b)) (v128.xor (local.get $c) (local.get $d))))
    (i64.xor (i64x2.extract_lane 0 (local.get $a)) (i64x2.extract_lane 1 (local.get $a)))))
