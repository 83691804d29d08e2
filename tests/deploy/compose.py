"""docker-compose.yml with and without its profile, what it mounts, and the demo beside it: compose.py DOCKER_COMPOSE PROMTOOL"""

import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "deploy"))
sys.dont_write_bytecode = True

from bare.topology import FILES, PROMETHEUS, PUBLISHED, REDIS, STAGES, Demo  # noqa: E402

OBSERVABILITY = {"otel-collector", "jaeger", "prometheus", "grafana"}
GATEWAYS = {"lockgate-1", "lockgate-2"}


def config(*words, env=None):
    with tempfile.NamedTemporaryFile("w", suffix=".env") as secrets:
        text = (ROOT / ".env.example").read_text().splitlines()
        secrets.write("\n".join(line + "x" if line.endswith("=") else line for line in text))
        secrets.flush()
        command = [COMPOSE, "--env-file", secrets.name, *words, "config", "--format", "json"]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True,
                              env=os.environ | (env or {}))
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def soft_and_hard(limit):
    """`nofile`, written as one number or as two."""
    return limit if isinstance(limit, dict) else {"soft": limit, "hard": limit}


class Compose(unittest.TestCase):
    def test_the_profile_adds_its_services_and_changes_no_other(self):
        plain, full = config()["services"], config("--profile", "observability")["services"]
        self.assertEqual(OBSERVABILITY, set(full) - set(plain))
        self.assertEqual(plain, {name: one for name, one in full.items() if name in plain})

    def test_export_is_off_unless_it_is_asked_for(self):
        name = "OTEL_EXPORTER_OTLP_ENDPOINT"
        for given in ("", "http://otel-collector:4318"):
            services = config(env={name: given})["services"]
            self.assertEqual({given}, {services[one]["environment"][name] for one in GATEWAYS})

    def test_gateways_are_confined(self):
        services = config()["services"]
        for name in GATEWAYS:
            one = services[name]
            self.assertEqual("stdio", one["build"]["target"])
            self.assertTrue(one["read_only"])
            self.assertEqual(["/tmp:size=256m"], one["tmpfs"])
            self.assertEqual(["ALL"], one["cap_drop"])
            self.assertEqual(["no-new-privileges:true"], one["security_opt"])
            self.assertFalse(one.get("privileged") or one.get("cap_add"))

    def test_everything_that_is_mounted_exists_and_ports_are_local(self):
        for name, one in config("--profile", "observability")["services"].items():
            for volume in one.get("volumes", []):
                if volume["type"] == "bind":
                    self.assertTrue(Path(volume["source"]).exists(), volume)
                    self.assertTrue(volume["read_only"], volume)
            for port in one.get("ports", []):
                self.assertEqual("127.0.0.1", port["host_ip"], name)
            image = one["image"]
            self.assertNotIn(image.rpartition(":")[2], ("latest", image), name)

    def test_prometheus_reads_its_files(self):
        text = (ROOT / "deploy/prometheus/prometheus.yaml").read_text()
        with tempfile.TemporaryDirectory() as folder:
            place = Path(folder)
            (place / "prometheus.yaml").write_text(text.replace("/etc/prometheus/", ""))
            (place / "alerts.yaml").write_text((ROOT / "deploy/prometheus/alerts.yaml").read_text())
            done = subprocess.run([PROMTOOL, "check", "config", str(place / "prometheus.yaml")],
                                  capture_output=True, text=True)
        self.assertEqual(0, done.returncode, done.stderr)
        for name in GATEWAYS:
            self.assertIn(f"{name}:9090", text)

    def test_every_alert_fires_and_none_without_a_cause(self):
        tests = ROOT / "tests/deploy/alerts.yaml"
        done = subprocess.run([PROMTOOL, "test", "rules", str(tests)], capture_output=True, text=True)
        self.assertEqual(0, done.returncode, done.stdout + done.stderr)
        declared = re.findall(r"- alert: (\w+)", (ROOT / "deploy/prometheus/alerts.yaml").read_text())
        fired = re.findall(r"alertname: (\w+)\n", tests.read_text())
        self.assertEqual(sorted(declared), sorted(fired))

    def test_the_demo_has_the_same_services_with_the_same_settings(self):
        services = config("--profile", "observability")["services"]
        order = [name for stage in STAGES for name in stage]
        # docs/demo.md says so.
        self.assertEqual(set(services) - {"otel-collector", "jaeger", "grafana"}, set(order))
        stages = {name: number for number, stage in enumerate(STAGES) for name in stage}
        for name in order:
            self.assertEqual("unless-stopped", services[name]["restart"], name)
            for needed in services[name].get("depends_on", {}):
                self.assertLess(stages[needed], stages[name], f"{name} needs {needed}")
        for name, port in PUBLISHED.items():
            self.assertEqual([str(port)], [one["published"] for one in services[name]["ports"]], name)
        # `$$` is Compose's for `$`.
        redis = " ".join(services["redis"]["command"])
        self.assertIn(f"valkey-server - {shlex.join(REDIS)}", redis)
        self.assertIn("requirepass", redis)
        self.assertEqual(["--config.file=/etc/prometheus/prometheus.yaml", *PROMETHEUS], services["prometheus"]["command"])
        self.assertEqual({"soft": FILES, "hard": FILES}, soft_and_hard(services["balancer"]["ulimits"]["nofile"]))
        self.assertEqual(services["lockgate-1"]["ulimits"], services["balancer"]["ulimits"])

    def test_the_demo_gives_the_gateways_the_same_environment(self):
        wanted = config()["services"]["lockgate-1"]["environment"]
        with tempfile.TemporaryDirectory() as folder:
            demo = Demo.__new__(Demo)
            demo.folder = Path(folder)
            (demo.folder / "files").mkdir()
            demo.ports, demo.issuer = {"redis": 1, "postgres": 2}, "http://127.0.0.1:3"
            demo.secrets = dict.fromkeys(("redis_password", "postgres_password", "dex_client_secret"), "x")
            found = demo.gateway_environment()
        self.assertEqual(set(wanted), set(found))
        for name, value in found.items():
            value = value.replace("127.0.0.1:1", "redis:6379").replace("127.0.0.1:2", "postgres:5432")
            if "/" in value and "://" not in value:
                # A file in another folder; a secret by the name of its variable.
                self.assertEqual(Path(wanted[name]).name, Path(value).name, name)
            else:
                self.assertEqual(wanted[name], value, name)

    def test_collector_and_grafana_name_services_that_exist(self):
        services = set(config("--profile", "observability")["services"])
        for path, hosts in (("otel/collector.yaml", {"jaeger:4317"}),
                            ("prometheus/prometheus.yaml", {"otel-collector:8889"}),
                            ("grafana/provisioning/datasources/lockgate.yaml",
                             {"prometheus:9090", "jaeger:16686"})):
            text = (ROOT / "deploy" / path).read_text()
            for host in hosts:
                self.assertIn(host, text)
                self.assertIn(host.split(":")[0], services)


if __name__ == "__main__":
    COMPOSE, PROMTOOL = sys.argv.pop(1), sys.argv.pop(1)
    unittest.main(verbosity=2)
