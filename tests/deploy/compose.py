"""docker-compose.yml with and without its profile, and what it mounts: compose.py DOCKER_COMPOSE PROMTOOL"""

import json
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
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


class Compose(unittest.TestCase):
    def test_the_profile_adds_its_services_and_changes_no_other(self):
        plain, full = config()["services"], config("--profile", "observability")["services"]
        self.assertEqual(OBSERVABILITY, set(full) - set(plain))
        self.assertEqual(plain, {name: one for name, one in full.items() if name in plain})

    def test_export_is_off_unless_it_is_asked_for(self):
        name = "OTEL_EXPORTER_OTLP_ENDPOINT"
        for given in ("", "http://otel-collector:4317"):
            services = config(env={name: given})["services"]
            self.assertEqual({given}, {services[one]["environment"][name] for one in GATEWAYS})

    def test_gateways_are_confined(self):
        services = config()["services"]
        for name in GATEWAYS:
            one = services[name]
            self.assertEqual("stdio", one["build"]["target"])
            self.assertTrue(one["read_only"])
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
