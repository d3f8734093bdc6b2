"""summary.py FILE.xml SECONDS: what ctest --output-junit counted, in words; the last line is `N passed, N failed`."""
import sys
import xml.etree.ElementTree as ElementTree

name, seconds = sys.argv[1:]
by_verdict = {"run": [], "fail": [], "notrun": []}
for case in ElementTree.parse(name).getroot().iter("testcase"):
    by_verdict.setdefault(case.get("status"), []).append(case)
passed = len(by_verdict.pop("run"))
skipped = [c for c in by_verdict["notrun"] if c.find("skipped") is not None and "SKIP_" in c.find("skipped").get("message", "")]
failed = [c for cases in by_verdict.values() for c in cases if c not in skipped]  # one that could not start has failed
print(f"\n== tests done in {seconds} s")
for case in skipped:
    print(f"skipped: {case.get('name')}")
for case in failed:
    print(f"failed:  {case.get('name')}")
print("try next: launch/quickstart" if not failed else "try next: tests/run -R NAME -V")
print(f"{passed} passed, {len(failed)} failed")
sys.exit(1 if failed or passed == 0 else 0)
