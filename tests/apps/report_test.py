"""`report`: what the page says, that it needs nothing else, and that a real browser draws it."""
import base64
import json
import re
import shutil
import subprocess
import unittest

from program import ROOT, Folder, run

BROWSER = shutil.which("chromium")


class Report(Folder):
    def a_run(self, name="run", ranks=None, **settings):
        changed = {k.replace("_", ".", 1): v for k, v in settings.items()}
        done = self.train({**self.small_run(), "log.dir": self.folder / name, "train.steps": 6, "eval.tokens": self.folder / "train.h5",
                           "checkpoint.every_steps": 3, **changed}, "--device", "cpu", ranks=ranks)
        self.assertEqual(done.code, 0, done)
        shutil.rmtree(self.folder / "target")
        return self.folder / name

    def runs_of(self, page):
        return json.loads(re.search(r'<script type="application/json" id="runs">(.*?)</script>', page, re.S)[1])

    def test_training_writes_it(self):
        directory = self.a_run()
        page = (directory / "report.html").read_text()
        shown, = self.runs_of(page)
        metrics = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
        self.assertEqual(shown["metrics"]["step"], [1, 2, 3, 4, 5, 6])
        for name in ("loss", "accuracy", "lr", "grad_norm"):
            for a, b in zip(shown["metrics"][name], metrics, strict=True):
                self.assertAlmostEqual(a, b[name], delta=1e-4 * abs(b[name]))
        self.assertEqual(len(shown["metrics"]["slot_accuracy"][0]), 3)
        self.assertEqual([e["step"] for e in shown["evaluations"]], [0, 6])
        self.assertEqual((shown["totals"]["step"], shown["totals"]["total_steps"]), (6, "6"))
        self.assertEqual(shown["config"]["train.steps"], "6")
        self.assertIn("train --config", shown["command"])
        self.assertIn("MPI", shown["versions"])
        self.assertEqual(shown["plan"]["rank"][0]["role"], "both")
        for outside in re.findall(r'(?:src|href)\s*=|https?://[^\s"\']*', page):
            self.assertEqual(outside, "http://www.w3.org/2000/svg")

    def test_many_steps_stay_a_small_page(self):
        directory = self.a_run()
        line = json.loads((directory / "metrics.jsonl").read_text().splitlines()[-1])
        with open(directory / "metrics.jsonl", "w") as f:
            for step in range(1, 25001):
                f.write(json.dumps({**line, "step": step, "loss": step / 1000}) + "\n")
            f.write('{"step": 25001, "lo')  # being written
        done = run("report", directory, "--out", self.folder / "page.html")
        self.assertEqual(done.code, 0, done)
        shown, = self.runs_of((self.folder / "page.html").read_text())
        self.assertEqual(len(shown["metrics"]["step"]), 1000)
        self.assertEqual((shown["metrics"]["step"][0], shown["metrics"]["step"][-1]), (25, 25000))
        self.assertAlmostEqual(shown["metrics"]["loss"][0], 0.013, places=6)  # the mean of steps 1 to 25
        self.assertLess((self.folder / "page.html").stat().st_size, 400_000)

    def test_refusals(self):
        for arguments, code, part in (([], 2, "run directory"), ([self.folder], 3, "metrics.jsonl"), ([self.folder / "absent"], 3, "absent")):
            done = run("report", *arguments)
            self.assertEqual((done.code, len(done.err.splitlines())), (code, 1), done)
            self.assertIn(part, done.err)
        self.assertEqual(self.tree(), [])

    def test_where_time_went(self):
        directory = self.a_run(ranks=2)
        shown, = self.runs_of((directory / "report.html").read_text())
        metrics = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
        seconds = sum(m["seconds"] for m in metrics)
        for role, waits, lost in (("drafters", "waiting for features", sum(m["wait_features_s"] for m in metrics)),
                                  ("targets", "waiting for requests", sum(m["target_wait_share"] * m["seconds"] for m in metrics))):
            parts = dict(shown["totals"]["time"][role])
            self.assertAlmostEqual(sum(parts.values()), seconds, delta=1e-3 * seconds)
            self.assertAlmostEqual(parts.get(waits, 0), lost, delta=1e-3 * seconds)
        self.assertEqual(shown["plan"]["device"], {"name": "CPU"})
        self.assertNotIn("peak_share", shown["totals"])  # nobody declares a CPU's peak

    def test_share_of_peak(self):
        """As a run on two GPUs leaves it: the plan names the card and its declared peak, each step its share."""
        directory = self.a_run(ranks=2)
        plan = json.loads((directory / "plan.json").read_text())
        plan["device"] = {"name": "NVIDIA H200", "declared_bf16_flops": 989.4e12}
        (directory / "plan.json").write_text(json.dumps(plan))
        metrics = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
        (directory / "metrics.jsonl").write_text("".join(json.dumps({**m, "peak_share": m["step"] / 100}) + "\n" for m in metrics))
        self.assertEqual(run("report", directory, "--out", self.folder / "page.html").code, 0)
        shown, = self.runs_of((self.folder / "page.html").read_text())
        flops = sum(m["rows"] for m in metrics) * (plan["row"]["target_flops"] + plan["row"]["drafter_flops"])
        share = flops / sum(m["seconds"] for m in metrics) / (2 * 989.4e12)
        self.assertAlmostEqual(shown["totals"]["peak_share"], share, delta=1e-4 * share)
        self.assertEqual(shown["metrics"]["peak_share"], [0.01, 0.02, 0.03, 0.04, 0.05, 0.06])
        if BROWSER:
            seen = self.drawn(self.folder / "page.html")
            self.assertRegex(seen["text"], r"of peak: 2 × 989\.4 TFLOP/s, dense bf16 as declared for NVIDIA H200")
            self.assertIn("Share of peak", seen["charts"])

    def drawn(self, page, width=1280, dark=False):
        """What a browser makes of the page in a frame of that width (its own windows are never narrower than 500)."""
        probe = """<script>addEventListener('load', () => setTimeout(() => {
          const edge = document.documentElement.clientWidth + 1, all = [...document.querySelectorAll('main *')];
          parent.postMessage({ width: innerWidth, scroll: document.documentElement.scrollWidth, dark: matchMedia('(prefers-color-scheme: dark)').matches,
            back: getComputedStyle(document.body).backgroundColor, ink: getComputedStyle(document.body).color, text: document.body.innerText,
            heads: [...document.querySelectorAll('h2')].map(h => h.textContent), title: document.querySelector('h1').textContent,
            charts: [...document.querySelectorAll('figure')].filter(f => f.querySelector('path[d^=M]')).map(f => f.querySelector('b').textContent),
            outside: all.filter(e => !e.closest('.scroll') && e.getBoundingClientRect().right > edge).map(e => e.outerHTML.slice(0, 99)),
            requests: performance.getEntriesByType('resource').map(r => r.name) }, '*');
        }, 300));</script>"""
        copy, frame = self.folder / "probed.html", self.folder / "frame.html"
        copy.write_text(page.read_text().replace("</body>", probe + "</body>"))
        frame.write_text(f"<body><iframe src='probed.html' width={width} height=900 style='border:0'></iframe><pre id='seen'></pre>"
                         "<script>onmessage = e => { document.getElementById('seen').textContent = btoa(unescape(encodeURIComponent(JSON.stringify(e.data)))); }</script>")
        done = subprocess.run([BROWSER, "--headless=new", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--v=0",
                               f"--blink-settings=preferredColorScheme={0 if dark else 1}", f"--user-data-dir={self.folder}/profile",
                               f"--window-size={width + 40},1000", "--virtual-time-budget=3000", "--dump-dom", f"file://{frame}"],
                              capture_output=True, text=True, timeout=90)
        self.assertNotIn("CONSOLE", done.stderr)
        seen = json.loads(base64.b64decode(re.search(r'<pre id="seen">([^<]+)</pre>', done.stdout)[1]))
        self.assertEqual((seen["width"], seen["dark"], seen["outside"], seen["requests"]), (width, dark, [], []))
        self.assertLessEqual(seen["scroll"], width)
        bright = [sum(map(int, re.findall(r"\d+", seen[name])[:3])) > 382 for name in ("back", "ink")]
        self.assertEqual(bright, [not dark, dark])
        return seen

    @unittest.skipUnless(BROWSER, "needs chromium")
    def test_in_a_browser(self):
        """All that a run has to show, on a phone and on a desk, light and dark; and two runs over one another."""
        first = self.a_run("a</script><b>", ranks=2)  # a name that must not end the data
        second = self.a_run("b", ranks=2, train_lr=2e-3, data_tokens=f"{self.folder}/train.h5@2")
        charts = ["Acceptance length", "Loss", "Accuracy", "Accuracy of a slot", "Tokens a second", "Time lost waiting", "Queue", "Gradient norm", "Learning rate"]
        out = self.folder / "page.html"
        self.assertEqual(run("report", first, "--out", out).code, 0)
        for width, dark in ((390, False), (1280, True)):
            seen = self.drawn(out, width, dark)
            self.assertEqual(seen["title"], "script><b>")
            self.assertEqual([c for c in charts if c not in seen["charts"]], [])
            self.assertEqual(seen["heads"], ["Training", "Where time went", "Ranks and memory", "Settings and versions"])
            for part in ("drafters", "targets", "forward, backward, update", "memory of a drafter by name", "memory of a target by name", "largest parts",
                         "train --config", "Open MPI", "HDF5", "settings"):
                self.assertIn(part, seen["text"])
            self.assertNotIn("of peak", seen["text"])
        self.assertEqual(run("report", first, second, "--out", out).code, 0)
        seen = self.drawn(out, 390, True)
        charts.remove("Accuracy of a slot")
        self.assertEqual((seen["title"], [c for c in charts if c not in seen["charts"]]), ("2 runs", []))
        for head in ("Settings that differ", "b: Where time went", "b: Sources", "b: Ranks and memory"):
            self.assertIn(head, seen["heads"])
        self.assertRegex(seen["text"], r"train\.lr\s+0\.0006\s+0\.002")
        self.assertRegex(seen["text"], r"train\.h5\s+2\s+\d+\s+[\d. k]+\s+100 %")


unittest.main(verbosity=2)
