"""mcp-authlab against a server: it logs in, mints tokens, attacks with them, and grades: py_authlab.py URL

Grade A, every applicable check run, and no warning but the one that loopback is plain http.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
PROGRAM = Path(sys.executable).with_name("mcp-authlab")
# What is said of every server on loopback.
EXPECTED = {"TLS-01": "warn"}


def run(*words, environment):
    command = [PROGRAM, *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=80, env=environment)
    return done.returncode, done.stdout, done.stderr


def main():
    (url,) = sys.argv[1:]
    with tempfile.TemporaryDirectory(prefix="lockgate-authlab-") as folder:
        trace = Path(folder) / "browser"
        environment = os.environ | {
            "HOME": folder,
            "XDG_CONFIG_HOME": f"{folder}/config",
            "BROWSER": str(HERE / "browser.mjs"),
            "BROWSER_TRACE": str(trace),
        }
        foreign = url.replace("/one/", "/two/")
        code, out, said = run(
            "login", url, "--foreign-resource", foreign, "--thorough", environment=environment
        )
        visits = [json.loads(line) for line in trace.read_text().splitlines()] if trace.exists() else []
        assert code == 0, (said, out, visits)
        assert all("error" not in visit for visit in visits), visits
        # Each probe of a code ends that code, so that each of two tokens needs another.
        assert len(visits) == 4, visits
        code, out, said = run(
            "scan", url, "--tool", "test_simple_text", "--format", "json", "--fail-under", "A",
            environment=environment,
        )
        report = json.loads(out)
        other = {
            one["id"]: (one["status"], one["message"])
            for one in report["results"]
            if one["status"] != "pass"
        }
        assert {name: status for name, (status, _) in other.items()} == EXPECTED, other
        assert (code, report["grade"], report["coverage"]["critical_not_run"]) == (0, "A", []), said
        assert report["coverage"]["ran"] == report["coverage"]["applicable"], report["coverage"]
        print(f"grade {report['grade']}, score {report['score']}, {report['coverage']['line']}")


main()
