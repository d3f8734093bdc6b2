"""`slipstream bench` on the CPU: rows parse, numbers are positive, mistakes are exit code 2."""
import json
import unittest

from program import Folder, run


def bench(*arguments):
    return run("bench", *arguments, "--device", "cpu")


class Bench(Folder):
    def rows(self, *arguments, precision="fp32"):
        done = bench(*arguments)
        self.assertEqual(done.code, 0, done)
        rows = [json.loads(line) for line in done.out.splitlines()]
        self.assertTrue(rows)
        for row in rows:
            for key in ("median_ms", "min_ms", "max_ms", "repeats", "peak_tflops", "peak_gb_s"):
                if row["op"] != "rest":  # the difference of two timings
                    self.assertGreater(row[key], 0, (key, row))
            for key in ("flops", "bytes", "tflops", "gb_s", "percent_of_peak"):
                self.assertGreater(row.get(key, 1), 0, (key, row))
            if row["op"] != "rest":
                self.assertIn("percent_of_peak", row)
            self.assertLessEqual(row["min_ms"], row["median_ms"])
            self.assertLessEqual(row["median_ms"], row["max_ms"])
            self.assertEqual(row["precision"], precision)
            self.assertTrue(row["device"] and row["commit"])
        return rows

    def test_drafter(self):
        (row,) = self.rows("drafter", "--shape", "tiny", "--repeat", "3")
        self.assertEqual((row["bench"], row["model"], row["repeats"]), ("drafter", "tiny", 3))
        self.assertEqual(row["shape"]["blocks"], 16)
        for key in ("forward_ms", "backward_ms", "optimizer_ms", "tokens_per_s", "arena_bytes", "products_ms"):
            self.assertGreater(row[key], 0, key)
        self.assertGreater(row["flops"], row["products_flops"])
        self.assertAlmostEqual(row["flops"] / row["planned_flops"], 1, delta=0.1)

    def test_profile_covers_the_step(self):
        rows = self.rows("drafter", "--profile", "--repeat", "3", "--blocks-per-pass", "5", "--documents", "3")
        step, parts = rows[0], rows[1:]
        self.assertEqual({r["bench"] for r in parts}, {"profile"})
        self.assertAlmostEqual(sum(r["total_ms"] for r in parts) / step["median_ms"], 1, places=6)
        # The products that are profiled are those of the step's list, and head_loss has the rest.
        products = sum(r["flops"] * r["per_step"] for r in parts if r["op"] == "matmul")
        head = sum(r["flops"] * r["per_step"] for r in parts if r["op"] == "head_loss")
        self.assertAlmostEqual((products + head) / step["products_flops"], 1, places=6)
        attention = sum(r["flops"] * r["per_step"] for r in parts if r["op"] == "block_attention")
        self.assertAlmostEqual((products + head + attention) / step["flops"], 1, places=6)

    def test_drafter_in_fp8(self):
        rows = self.rows("drafter", "--precision", "fp8", "--profile", "--repeat", "2", precision="fp8")
        step, parts = rows[0], rows[1:]
        self.assertAlmostEqual(sum(r["total_ms"] for r in parts) / step["median_ms"], 1, places=6)
        self.assertGreater(sum(r["total_ms"] for r in parts if r["op"] == "quantize_fp8"), 0)
        self.assertIn("--precision fp8: `bench drafter` has it", bench("ops", "--precision", "fp8").err)

    def test_target(self):
        (row,) = self.rows("target", "--repeat", "3", "--documents", "4")
        self.assertEqual(row["shape"], {"tokens": 288, "documents": 4, "layers": 3, "taps": 2})
        self.assertGreater(row["tokens_per_s"], 0)

    def test_profile_of_a_hybrid_target(self):
        rows = self.rows("target", "--shape", "tests/golden/tiny-qwen3_5", "--profile", "--tokens", "130", "--repeat", "2")
        capture, parts = rows[0], {r["op"]: r for r in rows[1:]}
        self.assertEqual(capture["op"], "capture")
        self.assertEqual({r["bench"] for r in rows[1:]}, {"profile"})
        self.assertAlmostEqual(sum(r["percent_of_capture"] for r in parts.values()), 100, places=6)
        calls = {op: r["calls"] for op, r in parts.items()}
        self.assertEqual(calls, {"embedding": 1, "norm": 9, "in": 4, "o": 4, "gate_up": 4, "swiglu": 4, "down": 4,
                                 "delta_conv": 3, "gated_delta": 3, "gated_norm": 3,
                                 "head_rope": 1, "attention": 1, "output_gate": 1})
        products = sum(parts[op]["flops"] for op in ("in", "o", "gate_up", "down"))
        self.assertAlmostEqual(products / capture["products_flops"], 1, places=6)

    def test_packed_attention_against_one_document(self):
        rows = {r["name"]: r for r in self.rows("ops", "block_attention", "--repeat", "1", "--warmup", "0")}
        for way in ("forward", "backward"):
            one = rows[f"S=288 {way}"]
            self.assertNotIn("per_pair_ratio", one)
            for documents in (2, 4, 8, 16):
                row = rows[f"S=288 {documents} documents {way}"]
                self.assertLess(row["shape"]["pairs"], one["shape"]["pairs"])
                ratio = row["median_ms"] / row["shape"]["pairs"] / (one["median_ms"] / one["shape"]["pairs"])
                self.assertAlmostEqual(row["per_pair_ratio"] / ratio, 1, places=6)

    def test_ops(self):
        rows = self.rows("ops", "matmul", "swiglu", "--repeat", "2", "--warmup", "1")
        self.assertEqual({r["op"] for r in rows}, {"matmul", "swiglu"})
        self.assertEqual(len({(r["name"], str(r["shape"])) for r in rows}), len(rows))
        logits = next(r for r in rows if r["name"] == "head logits")
        self.assertEqual(logits["flops"], 2 * logits["shape"]["m"] * logits["shape"]["n"] * logits["shape"]["k"])

    def test_every_op_runs(self):
        rows = self.rows("ops", "--repeat", "1", "--warmup", "0")
        listed = bench("ops", "no_such_op").err.split("there are ")[1].strip().split(", ")
        self.assertEqual({r["op"] for r in rows}, set(listed))

    def test_a_file_collects_rows_and_a_drafter_may_be_a_file(self):
        out = self.folder / "rows.jsonl"
        first = self.rows("ops", "zero", "--repeat", "1", "--out", out, "--commit", "abc")
        self.assertEqual(first[0]["commit"], "abc")
        self.rows("drafter", "--shape", "configs/tiny-drafter.json", "--tokens", "64", "--anchors", "4", "--repeat", "1",
                  "--out", out)
        self.assertEqual([json.loads(line)["bench"] for line in out.read_text().splitlines()], ["ops", "drafter"])

    def test_too_slow_is_exit_code_1(self):
        done = bench("ops", "matmul", "--repeat", "1", "--min-percent", "100000")
        self.assertEqual(done.code, 1)
        self.assertIn("--min-percent", done.err)

    def test_mistakes(self):
        for arguments, word in [
            (("ops", "no_such_op"), "block_attention"),
            (("nothing",), "ops, target, drafter"),
            ((), "ops, target, drafter"),
            (("drafter", "--shape", "no-such"), "qwen3-8b"),
            (("target", "--shape", "no-such"), "llama-3.1-8b"),
            (("drafter", "--tokens", "-1"), "--tokens"),
            (("ops", "--profile"), "bench target"),
            (("drafter", "matmul"), "matmul"),
            (("target", "--cudnn"), "--cudnn"),
            (("drafter", "--documents", "200"), "--documents"),
            (("ops", "--precision", "bf16"), "bf16"),
            (("ops", "--out", "/no/such/folder/rows"), "--out"),
        ]:
            done = bench(*arguments)
            self.assertEqual(done.code, 2, (arguments, done.err))
            self.assertIn(word, done.err)
            self.assertEqual(done.out, "")


if __name__ == "__main__":
    unittest.main()
