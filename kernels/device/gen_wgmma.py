#!/usr/bin/env python3
"""Writes wgmma.inc: one wrapper per form and N of wgmma.mma_async m64nNk16 f32 += bf16 * bf16.

WgmmaSS: A and B from shared memory by descriptor; ta, tb = 1 where that operand is MN-major.
WgmmaRS: A from four registers a thread (always K-major), B from shared memory.
The accumulate flag is a run-time predicate: with 0 the product overwrites d, so nothing needs zeroing.

    python3 gen_wgmma.py > wgmma.inc
"""
SS = (16, 32, 64, 80, 96, 112, 128, 144)
RS = (64, 128, 256)


def wrapped(items, indent, width=108):
    lines, line = [], ""
    for item in items:
        if line and len(indent) + len(line) + len(item) + 2 > width:
            lines.append(line)
            line = ""
        line += (", " if line else "") + item
    return (",\n" + indent).join(lines + [line])


def asm_list(n):
    """The accumulator operands as pieces of an asm string."""
    regs = [f"%{i}" for i in range(n)]
    rows = [", ".join(regs[i:i + 16]) for i in range(0, n, 16)]
    return "\n".join(f'        "{row}{", " if i + 1 < len(rows) else ""}"' for i, row in enumerate(rows))


def emit(form, n):
    d = n // 2
    if form == "SS":
        head = f"template <int ta, int tb> struct WgmmaSS<{n}, ta, tb> {{"
        args = f"float (&d)[{d}], uint64_t a, uint64_t b, int acc"
        tail, pred = f"%{d}, %{d + 1}, p, 1, 1, %{d + 3}, %{d + 4};", d + 2
        ins = '"l"(a), "l"(b), "r"(acc), "n"(ta), "n"(tb)'
    else:
        head = f"template <int tb> struct WgmmaRS<{n}, tb> {{"
        args = f"float (&d)[{d}], const uint32_t* a, uint64_t b, int acc"
        tail, pred = f"{{%{d}, %{d + 1}, %{d + 2}, %{d + 3}}}, %{d + 4}, p, 1, 1, %{d + 6};", d + 5
        ins = '"r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(acc), "n"(tb)'
    outs = wrapped([f'"+f"(d[{i}])' for i in range(d)], " " * 10)
    return f"""{head}
  static __device__ __forceinline__ void call({args}) {{
    asm volatile(
        "{{\\n.reg .pred p;\\nsetp.ne.b32 p, %{pred}, 0;\\n"
        "wgmma.mma_async.sync.aligned.m64n{n}k16.f32.bf16.bf16 {{"
{asm_list(d)}
        "}}, {tail}\\n}}\\n"
        : {outs}
        : {ins});
  }}
}};"""


print("// Written by gen_wgmma.py.")
print("template <int N, int ta, int tb> struct WgmmaSS;\ntemplate <int N, int tb> struct WgmmaRS;")
for form, sizes in (("SS", SS), ("RS", RS)):
    for n in sizes:
        print(emit(form, n))
