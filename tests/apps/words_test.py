"""Typing mistakes: one line, exit code 2, with what was nearest; and progress where nobody looks at a terminal."""
import re
import unittest

from program import Folder, run

CONFIG = "configs/tiny.ini"


class Words(Folder):
    def test_typing_mistakes(self):
        for arguments, said in (
                (["trian"], "unknown command 'trian'; the nearest known one is 'train' (slipstream --help lists them)"),
                (["--verison"], "the nearest known one is '--version'"),
                (["quickstart"], "unknown command 'quickstart'; there are train, plan, dump,"),
                (["train", "--confg", CONFIG], "train: unrecognised option '--confg'; the nearest is --config"),
                (["inspect", "--verfy", "x"], "inspect: unrecognised option '--verfy'; the nearest is --verify"),
                (["decode", "--zzzzzzzz", "x"], "decode: unrecognised option '--zzzzzzzz' (slipstream decode --help"),
                (["decode", "--max-new", "ten"], "decode: the argument ('ten') for option '--max-new' is invalid"),
                (["plan", "--config", CONFIG, "--set", "train.lrr=1"], "--set: unknown key 'train.lrr'; the nearest known one is 'train.lr'"),
                (["plan", "--config", CONFIG, "--set", "lr=1"], "--set: unknown key 'lr'; the nearest known one is 'train.lr'"),
                (["plan", "--config", CONFIG, "--set", "train.lr=abc"], "--set: train.lr: 'abc' is not a number; the default is 0.0006"),
                (["plan", "--config", CONFIG, "--set", "train.steps=1.5"], "--set: train.steps: '1.5' is not a whole number; the default is 0"),
                (["plan", "--config", CONFIG, "--set", "log.tensorboard=maybe"], "log.tensorboard: 'maybe' is not true or false; the default is false"),
                (["plan", "--config", "configs/tinny.ini"], "--config configs/tinny.ini: the file cannot be read: no such file"),
                (["bench"], "bench: what? There are ops, target, drafter, decode, dump, wire"),
                (["bench", "opps"], "bench: 'opps' is not one of ops, target, drafter, decode, dump, wire")):
            done = run(*arguments)
            self.assertEqual((done.code, done.out, len(done.err.splitlines())), (2, "", 1), (arguments, done))
            self.assertIn(said, done.err)

    def test_in_a_file(self):
        config = self.folder / "run.ini"
        config.write_text("[train]\nlr = fast\n")
        done = run("train", "--config", config)
        self.assertEqual((done.code, len(done.err.splitlines())), (2, 1), done)
        self.assertIn(f"{config}: train.lr: 'fast' is not a number; the default is 0.0006", done.err)

    def test_a_checkpoint_that_is_not_there(self):
        done = self.train(self.small_run(), "--device", "cpu", "--resume", "latst")
        self.assertEqual(done.code, 3, done)
        self.assertRegex(done.err, re.escape("--resume latst: there is no such folder; it takes none, auto or a checkpoint's folder"))


unittest.main(verbosity=2)
