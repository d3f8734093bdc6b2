"""`report`: what the page says, that it needs nothing else, and that a real browser draws it."""
import json
import re
import shutil
import subprocess
import unittest

from program import ROOT, Folder, run

BROWSER = shutil.which("chromium")


class Report(Folder):
    def a_run(self, name="run", **settings):
        changed = {k.replace("_", ".", 1): v for k, v in settings.items()}
        done = self.train({**self.small_run(), "log.dir": self.folder / name, "train.steps": 6, "eval.tokens": self.folder / "train.h5",
                           "checkpoint.every_steps": 3, **changed}, "--device", "cpu")
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

    @unittest.skipUnless(BROWSER, "needs chromium")
    def test_in_a_browser(self):
        first = self.a_run("a</script><b>")  # a name that must not end the data
        second = self.a_run("b", train_lr=2e-3)
        out = self.folder / "page.html"
        for runs, curves, heading in (([first], 7, "<h1>script&gt;&lt;b&gt;</h1>"), ([first, second], 6, "<h1>2 runs</h1>")):
            self.assertEqual(run("report", *runs, "--out", out).code, 0)
            for width in (390, 1280):
                seen = subprocess.run([BROWSER, "--headless=new", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--v=0",
                                       f"--user-data-dir={self.folder}/profile", f"--window-size={width},900", "--virtual-time-budget=3000",
                                       "--dump-dom", f"file://{out}"], capture_output=True, text=True, timeout=60)
                self.assertNotIn("CONSOLE", seen.stderr)
                self.assertTrue(heading in seen.stdout, seen.stdout[seen.stdout.find('<main'):][:500])
                drawn = [f for f in re.findall(r"<figure>.*?</figure>", seen.stdout, re.S) if re.search(r'<path d="M\d', f)]
                self.assertGreaterEqual(len(drawn), curves)
                self.assertTrue(("<td>train.lr</td>" if len(runs) == 2 else "<h2>Ranks and memory</h2>") in seen.stdout)


unittest.main(verbosity=2)
