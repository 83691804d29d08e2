"""The Helm chart: its values, its renders with Helm 3 and 4, and its settings in the real gateway.

    tests/deploy/chart.py LOCKGATE_BINARY

HELM3 and HELM4 are the programs. CHART_WRITE=1 writes tests/deploy/renders, and the settings in
values.schema.json, anew."""

import base64
import copy
import json
import os
import re
import shutil
import ssl
import subprocess
import sys
import tarfile
import tempfile
import time
import tomllib
import unittest
import urllib.error
import urllib.request
from pathlib import Path

import kubernetes_validate
import yaml

from cluster import APIS, CHART, EXAMPLES, ROOT, Pod, helm, only, publish, render, template, variable, workload

HELMS = {"3": variable("HELM3"), "4": variable("HELM4")}
BINARY = Path(sys.argv.pop(1)).resolve()
WRITE = os.environ.get("CHART_WRITE") == "1"
RENDERS = Path(__file__).parent / "renders"
# The oldest that the chart allows, the one that Helm is told, and the newest with schemas here.
KUBERNETES = ["1.30", "1.34", "1.37"]
LEAST = ["--set", "publicUrl=https://mcp.example.com", "--set", "image.repository=registry.example.com/lockgate"]
MASTER_KEY = base64.b64encode(bytes(range(32))).decode()


def secrets_of(objects):
    """The Secrets that a release names, with values of the right form."""
    key = subprocess.run([BINARY, "key", "new"], capture_output=True, text=True, check=True).stdout
    certificate, private = certificate_of("mcp.internal")
    values = {
        "master-key": MASTER_KEY,
        "admin-key": re.search(r"^key: *(\S+)", key, re.MULTILINE)[1],
        "uri": "postgresql://lockgate:secret@lockgate-database-rw.mcp:5432/lockgate",
        "postgres": "postgres://lockgate:secret@10.30.0.5:5432/lockgate?sslmode=verify-full",
        "url": "rediss://lockgate:secret@redis.data:6379/0",
        "redis": "rediss://lockgate:secret@10.30.0.6:6379/0",
        "ca.crt": certificate,
        "tls.crt": certificate,
        "tls.key": private,
        "client-secret": "secret",
    }

    class Anything(dict):
        def __missing__(self, name):
            return values

    return Anything()


def certificate_of(host):
    """A certificate of its own authority, by OpenSSL."""
    with tempfile.TemporaryDirectory() as place:
        words = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
                 "-days", "2", "-subj", f"/CN={host}", "-addext", f"subjectAltName=DNS:{host}",
                 "-keyout", f"{place}/key", "-out", f"{place}/crt"]
        subprocess.run(words, check=True, capture_output=True)
        return Path(place, "crt").read_text(), Path(place, "key").read_text()


def programs(place):
    """A search path with the program that the images of the examples add; `check` looks for it."""
    path = Path(place, "bin")
    path.mkdir()
    for name in ("lockgate", "files-server"):
        (path / name).symlink_to(BINARY)
    return f"{path}:{os.environ['PATH']}"


class Examples(unittest.TestCase):
    """Every file of helm/lockgate/examples, and the values of least effort."""

    def test_lint_is_strict(self):
        for version, program in HELMS.items():
            for example in EXAMPLES:
                with self.subTest(helm=version, example=example.name):
                    done = helm(program, "lint", "--strict", CHART, "--values", example, "--kube-version", "1.34.0")
                    self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
                    self.assertNotIn("[WARNING]", done.stdout)
                    self.assertNotIn("[ERROR]", done.stdout)

    def test_renders_are_those_of_the_repository(self):
        names = set()
        for example in EXAMPLES:
            golden = RENDERS / example.name
            names.add(golden.name)
            for version, program in HELMS.items():
                with self.subTest(helm=version, example=example.name):
                    done = template(program, "--values", example)
                    self.assertEqual(done.returncode, 0, done.stderr)
                    if WRITE:
                        golden.write_text(done.stdout)
                    # Helm 3 and 4 differ in the order of kinds and in empty lines.
                    self.assertEqual(documents(golden.read_text()), documents(done.stdout),
                                     "another render: CHART_WRITE=1 writes them anew")
        self.assertEqual(names, {path.name for path in RENDERS.iterdir()})

    def test_objects_are_valid(self):
        for example in EXAMPLES:
            for version in KUBERNETES:
                for one in render(HELMS["4"], "--values", example, version=f"{version}.0"):
                    if one["apiVersion"].split("/")[0] in {api.split("/")[0] for api in APIS}:
                        continue
                    with self.subTest(example=example.name, kubernetes=version, kind=one["kind"]):
                        kubernetes_validate.validate(one, version, strict=True)

    def test_a_wrong_object_is_noticed(self):
        wrong = copy.deepcopy(workload(render(HELMS["4"], *LEAST)))
        wrong["spec"]["template"]["spec"]["containers"][0]["livenessprobe"] = {}
        with self.assertRaises(kubernetes_validate.ValidationError):
            kubernetes_validate.validate(wrong, "1.34", strict=True)

    def test_settings_and_manifest_are_right(self):
        for example in [None, *EXAMPLES]:
            values = ["--values", example] if example else LEAST
            objects = render(HELMS["4"], *values)
            with self.subTest(example=example), tempfile.TemporaryDirectory() as place:
                pod = Pod(place, workload(objects)["spec"]["template"], objects, secrets_of(objects))
                env = {"PATH": programs(place), "HOME": place, **pod.environment()}
                done = subprocess.run([BINARY, "check"], env=env, capture_output=True, text=True)
                self.assertEqual(done.returncode, 0, done.stderr)
                manifest = yaml.safe_load(example.read_text()).get("manifest") if example else None
                for tenant in (manifest or {}).get("content", {}).get("tenants", {}):
                    self.assertIn(f"/t/{tenant}/", done.stdout)

    def test_pods_keep_to_the_restricted_profile(self):
        for example in [None, *EXAMPLES]:
            for pod in pods(render(HELMS["4"], *(["--values", example] if example else LEAST))):
                with self.subTest(example=example):
                    self.assertIs(pod["automountServiceAccountToken"], False)
                    self.assertIs(pod["securityContext"]["runAsNonRoot"], True)
                    self.assertEqual(pod["securityContext"]["seccompProfile"], {"type": "RuntimeDefault"})
                    for key in ("hostNetwork", "hostPID", "hostIPC"):
                        self.assertNotIn(key, pod)
                    for volume in pod.get("volumes", []):
                        self.assertNotIn("hostPath", volume)
                    for container in pod["containers"]:
                        own = container["securityContext"]
                        self.assertIs(own["allowPrivilegeEscalation"], False)
                        self.assertIs(own["readOnlyRootFilesystem"], True)
                        self.assertEqual(own["capabilities"], {"drop": ["ALL"]})
                        self.assertNotIn("runAsUser", own)

    def test_openshift_chooses_the_user(self):
        example = next(one for one in EXAMPLES if one.stem == "openshift")
        for pod in pods(render(HELMS["4"], "--values", example)):
            self.assertFalse({"runAsUser", "runAsGroup", "fsGroup"} & set(pod["securityContext"]))


def for_others(place):
    """A copy of the gateway that other users can read."""
    os.chmod(place, 0o755)
    Path(place, "bin").mkdir(mode=0o755)
    return Path(shutil.copy(BINARY, Path(place, "bin", "lockgate")))


def texts(path):
    """The lines of a file that may be gone."""
    try:
        return path.read_text().splitlines()
    except OSError:
        return []


def documents(text):
    """The objects of a render by kind and name, with its texts as they are."""
    found = {}
    for part in re.split(r"^---$", text, flags=re.MULTILINE):
        one = yaml.safe_load(part)
        if one:
            found[one["kind"], one["metadata"]["name"]] = [line for line in part.splitlines() if line.strip()]
    return found


def pods(objects):
    """The pods of a release: of its workload, and of its tests."""
    return [workload(objects)["spec"]["template"]["spec"]] + [one["spec"] for one in objects if one["kind"] == "Pod"]


class Objects(unittest.TestCase):
    """Objects with definitions of their own, and what has to agree between objects."""

    def of(self, name, *words):
        return render(HELMS["4"], "--values", CHART / "examples" / f"{name}.yaml", *words)

    def test_every_selector_finds_the_pods_of_the_gateway_and_no_others(self):
        for example in EXAMPLES:
            objects = self.of(example.stem)
            gateway = workload(objects)
            labels = gateway["spec"]["template"]["metadata"]["labels"]
            test = only(objects, "Pod")["metadata"]["labels"]
            selectors = [gateway["spec"]["selector"]["matchLabels"]]
            selectors += [one["spec"]["selector"] for one in objects if one["kind"] == "Service"]
            selectors += [one["spec"]["selector"]["matchLabels"] for one in objects if one["kind"] == "PodDisruptionBudget"]
            selectors += [one["spec"]["podSelector"]["matchLabels"] for one in objects if one["kind"] == "NetworkPolicy"]
            for spread in gateway["spec"]["template"]["spec"].get("topologySpreadConstraints", []):
                selectors.append(spread["labelSelector"]["matchLabels"])
            self.assertGreater(len(selectors), 3)
            for selector in selectors:
                self.assertLessEqual(selector.items(), labels.items())
                self.assertFalse(selector.items() <= test.items())

    def test_the_monitor_finds_the_service_of_operations_only(self):
        objects = self.of("replicated")
        monitor = only(objects, "ServiceMonitor")
        self.assertEqual(monitor["apiVersion"], "monitoring.coreos.com/v1")
        selector = monitor["spec"]["selector"]["matchLabels"].items()
        found = [one for one in objects if one["kind"] == "Service" and selector <= one["metadata"]["labels"].items()]
        self.assertEqual([one["metadata"]["name"] for one in found], ["lockgate-operations"])
        ports = {port["name"] for port in found[0]["spec"]["ports"]}
        (endpoint,) = monitor["spec"]["endpoints"]
        self.assertIn(endpoint["port"], ports)
        self.assertEqual(endpoint["path"], "/metrics")
        job = endpoint["relabelings"][0]
        self.assertEqual((job["targetLabel"], job["replacement"]), ("job", "lockgate"))
        self.assertIn('job="lockgate"', (ROOT / "deploy/prometheus/alerts.yaml").read_text())
        known = {"port", "path", "interval", "scrapeTimeout", "relabelings", "metricRelabelings"}
        self.assertLessEqual(set(endpoint), known)
        self.assertLessEqual(set(monitor["spec"]), {"selector", "namespaceSelector", "endpoints"})

    def test_alerts_and_dashboard_are_those_of_deploy(self):
        objects = self.of("replicated")
        rule = only(objects, "PrometheusRule")
        self.assertEqual(rule["spec"], yaml.safe_load((ROOT / "deploy/prometheus/alerts.yaml").read_text()))
        dashboard = only(objects, "ConfigMap", "-dashboard")["data"]["lockgate.json"]
        self.assertEqual(json.loads(dashboard), json.loads((ROOT / "deploy/grafana/lockgate.json").read_text()))
        for file in (CHART / "files").iterdir():
            self.assertTrue(file.is_symlink() and file.resolve().is_relative_to(ROOT / "deploy"), file)

    def test_the_route_leads_to_the_service(self):
        route = only(objects := self.of("gateway-api"), "HTTPRoute")
        self.assertEqual(route["apiVersion"], "gateway.networking.k8s.io/v1")
        self.assertLessEqual(set(route["spec"]), {"parentRefs", "hostnames", "rules"})
        self.assertEqual(route["spec"]["hostnames"], ["mcp.example.com"])
        (rule,) = route["spec"]["rules"]
        self.assertLessEqual(set(rule), {"matches", "timeouts", "filters", "backendRefs"})
        (backend,) = rule["backendRefs"]
        service = only(objects, "Service", "lockgate")
        self.assertEqual(backend["name"], service["metadata"]["name"])
        self.assertIn(backend["port"], [port["port"] for port in service["spec"]["ports"]])
        # Duration of GEP-2257; 0s is none.
        for timeout in rule["timeouts"].values():
            self.assertRegex(timeout, r"^([0-9]{1,5}(h|m|s|ms)){1,4}$")

    def test_the_ingress_leads_to_the_service(self):
        ingress = only(objects := self.of("replicated"), "Ingress")["spec"]
        (rule,) = ingress["rules"]
        self.assertEqual((rule["host"], ingress["tls"][0]["hosts"]), ("mcp.example.com", ["mcp.example.com"]))
        backend = rule["http"]["paths"][0]["backend"]["service"]
        service = next(one for one in objects if one["kind"] == "Service" and one["metadata"]["name"] == backend["name"])
        self.assertIn(backend["port"]["name"], [port["name"] for port in service["spec"]["ports"]])

    def test_the_policy_opens_each_port_to_those_who_need_it(self):
        policy = only(objects := self.of("replicated"), "NetworkPolicy")["spec"]
        rules = {rule["ports"][0]["port"]: rule.get("from") for rule in policy["ingress"]}
        self.assertEqual(set(rules), {"http", "operations", "cluster"})
        self.assertEqual(rules["cluster"], [{"podSelector": policy["podSelector"]}])
        test = only(objects, "Pod")["metadata"]["labels"]
        selector = rules["operations"][0]["podSelector"]["matchLabels"]
        self.assertTrue(selector and selector.items() <= test.items())
        self.assertEqual([sorted(peer) for peer in rules["operations"]],
                         [["podSelector"], ["namespaceSelector", "podSelector"]])
        plain = only(render(HELMS["4"], *LEAST), "NetworkPolicy")["spec"]
        rules = {rule["ports"][0]["port"]: rule.get("from") for rule in plain["ingress"]}
        self.assertEqual((set(rules), rules["http"], len(rules["operations"])), ({"http", "operations"}, None, 1))

    def test_secrets_are_files_that_can_change(self):
        for example in EXAMPLES:
            pod = workload(self.of(example.stem))["spec"]["template"]["spec"]
            container = pod["containers"][0]
            for mount in container["volumeMounts"]:
                self.assertNotIn("subPath", mount)
            for entry in container["env"]:
                self.assertNotIn("secretKeyRef", entry.get("valueFrom", {}))
        self.assertFalse([one for one in self.of("replicated") if one["kind"] == "Secret"])

    def test_the_test_asks_the_service_of_operations(self):
        objects = render(HELMS["4"], *LEAST, release="mcp-gateway", namespace="mcp")
        service = only(objects, "Service", "-operations")
        # As the kubelet names the variables of a Service.
        name = service["metadata"]["name"].upper().replace("-", "_") + "_SERVICE_HOST"
        (container,) = only(objects, "Pod")["spec"]["containers"]
        wanted = ["healthcheck", "--set", f"ops.listen=$({name}):{service['spec']['ports'][0]['port']}"]
        self.assertEqual(container["args"], wanted)

    def test_only_replicas_wait_for_others(self):
        for words, times in [(LEAST, (None, "0s", 54)), (["--values", CHART / "examples" / "replicated.yaml"], (5, "5s", 64))]:
            objects = render(HELMS["4"], *words)
            pod = workload(objects)["spec"]["template"]["spec"]
            sleep = pod["containers"][0].get("lifecycle", {}).get("preStop", {}).get("sleep", {}).get("seconds")
            settings = tomllib.loads(only(objects, "ConfigMap", "-settings")["data"]["lockgate.toml"])
            self.assertEqual((sleep, settings["drain"]["delay"], pod["terminationGracePeriodSeconds"]), times)

    def test_a_pod_that_never_gets_ready_is_replaced_by_the_next_upgrade(self):
        self.assertEqual(workload(render(HELMS["4"], *LEAST))["spec"]["podManagementPolicy"], "Parallel")

    def test_a_manifest_alone_restarts_nothing_unless_asked(self):
        def annotations(*words):
            content = ["--set-json", 'manifest.content={"version": 1, "tenants": {"a": {}}}']
            objects = render(HELMS["4"], *LEAST, *content, *words)
            return workload(objects)["spec"]["template"]["metadata"]["annotations"]

        other = ["--set-json", 'manifest.content.tenants={"b": {}}']
        asked = ["--set", "manifest.restartOnChange=true"]
        self.assertEqual(annotations(), annotations(*other))
        self.assertNotEqual(annotations(*asked), annotations(*asked, *other))
        self.assertNotEqual(annotations(), annotations("--set", "config.session.idle=1h"))

    def test_the_sandbox_of_servers(self):
        words = ["--set", "sandbox.uids=20000-29999", "--set", "sandbox.hostUsers=false"]
        objects = render(HELMS["4"], *LEAST, *words)
        pod = workload(objects)["spec"]["template"]["spec"]
        self.assertIs(pod["hostUsers"], False)
        self.assertEqual((pod["securityContext"]["runAsUser"], pod["securityContext"]["runAsNonRoot"]), (0, False))
        # Those of docs/containment.md.
        needed = re.search(r"requires \|.*?has (CAP_[A-Z_, CAP]+?) \|", (ROOT / "docs/containment.md").read_text())[1]
        needed = sorted(name.strip().removeprefix("CAP_") for name in needed.split(","))
        self.assertEqual(pod["containers"][0]["securityContext"]["capabilities"], {"drop": ["ALL"], "add": needed})
        settings = tomllib.loads(only(objects, "ConfigMap", "-settings")["data"]["lockgate.toml"])
        self.assertEqual(settings["sandbox"], {"uids": "20000-29999", "separation": "uid"})

    def test_no_child_fills_the_node_or_the_database(self):
        units = {"Mi": 2**20, "Gi": 2**30}

        def size(text):
            return int(text[:-2]) * units[text[-2:]]

        bare = [*LEAST, "--set", "persistence.enabled=false"]
        for words in [LEAST, bare, *[["--values", example] for example in EXAMPLES]]:
            with self.subTest(words=words):
                objects = render(HELMS["4"], *words)
                pod = workload(objects)["spec"]["template"]["spec"]
                limits = [size(one["emptyDir"]["sizeLimit"]) for one in pod["volumes"] if "emptyDir" in one]
                self.assertGreaterEqual(len(limits), 2)
                resources = pod["containers"][0]["resources"]
                self.assertIn("ephemeral-storage", resources["requests"])
                self.assertGreater(size(resources["limits"]["ephemeral-storage"]), sum(limits))
                settings = tomllib.loads(only(objects, "ConfigMap", "-settings")["data"]["lockgate.toml"])
                places = {one["mountPath"]: one["name"] for one in pod["containers"][0]["volumeMounts"]}
                self.assertEqual([places[settings[key]] for key in ("data_dir", "work_dir")], ["data", "work"])

    def test_volumes_of_another_kind_take_the_place_of_the_default(self):
        claim = {"ephemeral": {"volumeClaimTemplate": {"spec": {
            "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "4Gi"}}}}}}
        for version, program in HELMS.items():
            for name in ("data", "work", "tmp"):
                with self.subTest(helm=version, volume=name):
                    words = ["--set", "persistence.enabled=false", "--set-json", f"{name}Volume={json.dumps(claim)}"]
                    volumes = workload(render(program, *LEAST, *words))["spec"]["template"]["spec"]["volumes"]
                    self.assertIn({"name": name, **claim}, volumes)

    def test_addresses_of_the_other_family(self):
        objects = self.of("gateway-api", "--set", "ipFamily=IPv6")
        settings = tomllib.loads(only(objects, "ConfigMap", "-settings")["data"]["lockgate.toml"])
        self.assertEqual(settings["http"]["listen"], "[::]:8080")
        env = {entry["name"]: entry.get("value") for entry in workload(objects)["spec"]["template"]["spec"]["containers"][0]["env"]}
        self.assertEqual(env["LOCKGATE_CLUSTER__ADVERTISE"], "[$(POD_IP)]:7080")

    def test_numbers_and_texts_arrive_as_they_are(self):
        config = {"http": {"max_connections": 1000000, "allowed_hosts": ['a<b>&"\\c', "d\ne"]},
                  "auth": {"insecure": True}, "log": {"events": 12345678}}
        content = {"version": 1, "tenants": {"a": {"quotas": {"bytes_out": 1000000, "x": 12345678.5}}}}
        for version, program in HELMS.items():
            with self.subTest(helm=version):
                objects = render(program, *LEAST, "--set-json", f"config={json.dumps(config)}",
                                 "--set-json", f"manifest.content={json.dumps(content)}")
                settings = tomllib.loads(only(objects, "ConfigMap", "-settings")["data"]["lockgate.toml"])
                self.assertEqual({key: settings[key] for key in ("auth", "log")}, {key: config[key] for key in ("auth", "log")})
                self.assertEqual(settings["http"], {**config["http"], "listen": "0.0.0.0:8080"})
                text = only(objects, "ConfigMap", "-manifest")["data"]["manifest.yaml"]
                self.assertEqual(yaml.safe_load(text), content)
                # In a file of values, numbers take another way.
                with tempfile.NamedTemporaryFile("w", suffix=".yaml") as values:
                    yaml.safe_dump({"config": config, "manifest": {"content": content}}, values)
                    again = render(program, *LEAST, "--values", values.name)
                self.assertEqual(again, objects)


class Values(unittest.TestCase):
    """Values that are refused, and what keeps the files of the chart in step with the product."""

    def test_wrong_values_are_refused_with_the_reason(self):
        replicated = ["--values", CHART / "examples" / "replicated.yaml"]
        cases = [
            ([], "publicUrl: is required"),
            (LEAST[:2], "image.repository: is required"),
            ([*LEAST, "--set", "mode=replicated"], "secrets.masterKey.existingSecret: is required with mode replicated"),
            ([*LEAST, "--set", "secrets.redisUrl.existingSecret=x"], "secrets.redisUrl.existingSecret: is for mode replicated"),
            ([*LEAST, "--set", "autoscaling.enabled=true"], "autoscaling.enabled: needs mode replicated"),
            ([*LEAST, "--set", "terminationGracePeriodSeconds=40"], "is 40, and drain takes up to 52 s"),
            ([*LEAST, "--set", "drain.timeoutSeconds=300", "--set", "terminationGracePeriodSeconds=60"], "drain takes up to 322 s"),
            ([*replicated, "--set", "drain.preStopSeconds=0,drain.delaySeconds=0"], "preStopSeconds and delaySeconds are both 0"),
            ([*replicated, "--set", "manifest.existingConfigMap=x"], "content and existingConfigMap exclude each other"),
            ([*LEAST, "--set", "manifest.prune=true"], "manifest.prune: needs a manifest"),
            ([*replicated, "--set", "autoscaling.minReplicas=20"], "autoscaling.minReplicas: is more than maxReplicas"),
            ([*replicated, "--set", "autoscaling.targetSessions=null,autoscaling.targetCPUUtilizationPercentage=null"], "names no metric"),
            ([*replicated, "--set", "resources.requests.cpu=null"], "is a share of resources.requests.cpu"),
            ([*replicated, "--set", "podDisruptionBudget.minAvailable=3"], "is 3 of 3 replicas: no node could be drained"),
            ([*LEAST, "--set", "gateway.enabled=true"], "gateway.parentRefs: names no Gateway"),
            ([*LEAST, "--set", "publicUrl=http://x.example.com,ingress.tls.secretName=x"], "publicUrl does not begin with https://"),
            ([*LEAST, "--set", "serviceMonitor.enabled=true"], "name the peers of Prometheus"),
            ([*LEAST, "--set", "extraEnv[0].name=LOCKGATE_MASTER_KEY,extraEnv[0].value=x"], "name a Secret in secrets.masterKey"),
            ([*LEAST, "--set", "secrets.databaseUrl.existingSecret=x"], "secrets.masterKey.existingSecret: is required with secrets.databaseUrl"),
            ([*LEAST, "--set", "manifest.key=manifest.toml,manifest.content.version=1"], "end it in .yaml or .json"),
            ([*LEAST, "--set", "ports.operations=8080"], "two listeners have the same port"),
            # By the schema:
            ([*LEAST, "--set", "replicaCount=3"], "replicaCount"),
            ([*LEAST, "--set", "image.name=x"], "name"),
            ([*LEAST, "--set", "secrets.masterKey.value=x"], "value"),
            ([*LEAST, "--set", "config.session.idel=1h"], "idel"),
            ([*LEAST, "--set", "config.http.listen=127.0.0.1:1"], "listen"),
            ([*LEAST, "--set", "config.session.idle=30"], "idle"),
            ([*LEAST, "--set", "mode=single"], "mode"),
            ([*LEAST, "--set", "image.digest=sha256:12"], "digest"),
            ([*LEAST, "--set", "ports.http=80"], "http"),
            ([*LEAST, "--set", "publicUrl=mcp.example.com"], "publicUrl"),
            ([*LEAST, "--set", "persistence.accessModes={ReadWriteMany}"], "accessModes"),
            ([*LEAST, "--set", "networkPolicy.http.from[0].namespace=x"], "namespace"),
        ]
        for version, program in HELMS.items():
            for words, reason in cases:
                with self.subTest(helm=version, words=words[-1:], reason=reason):
                    done = template(program, *words)
                    self.assertNotEqual(done.returncode, 0)
                    self.assertIn(reason, done.stderr)

    def test_objects_that_the_cluster_does_not_know_are_refused(self):
        for name in ("replicated", "gateway-api"):
            done = template(HELMS["4"], "--values", CHART / "examples" / f"{name}.yaml", apis=[])
            self.assertNotEqual(done.returncode, 0)
            self.assertIn("install its definitions", done.stderr)
        done = template(HELMS["4"], *LEAST, version="1.29.0")
        self.assertIn("kubeVersion", done.stderr)

    def test_the_schema_has_the_settings_of_the_gateway(self):
        """Those that the chart does not write itself."""
        path = CHART / "values.schema.json"
        schema = json.loads(path.read_text())
        defaults = tomllib.loads((ROOT / "src/config/config.default.toml").read_text())
        wanted = section(defaults, "")
        if WRITE:
            schema["definitions"]["config"] = wanted
            path.write_text(json.dumps(schema, indent=2) + "\n")
        self.assertEqual(schema["definitions"]["config"], wanted, "CHART_WRITE=1 writes it anew")

    def test_the_schema_allows_the_values_of_the_chart_and_nothing_else(self):
        values = yaml.safe_load((CHART / "values.yaml").read_text())
        schema = json.loads((CHART / "values.schema.json").read_text())
        self.assertEqual(set(values) | {"global"}, set(schema["properties"]))
        free = []

        def walk(node, at):
            if node.get("type") == "object" and "properties" in node:
                self.assertIs(node.get("additionalProperties", True), False, at)
            for name, one in node.get("properties", {}).items():
                walk(one, f"{at}.{name}")

        for name, one in schema["properties"].items():
            walk(one, name)
        self.assertFalse(free)

    def test_readme_lists_every_value(self):
        path = CHART / "README.md"
        text, _, listed = path.read_text().partition("<!-- values -->\n")
        wanted = "\n" + values_table()
        if WRITE:
            path.write_text(f"{text}<!-- values -->\n{wanted}")
            listed = wanted
        self.assertEqual(listed, wanted, "CHART_WRITE=1 writes it anew")

    def test_versions_are_those_of_the_gateway(self):
        chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
        version = tomllib.loads((ROOT / "Cargo.toml").read_text())["package"]["version"]
        self.assertEqual((chart["appVersion"], chart["version"]), (version, version))

    def test_the_last_stages_fit_into_the_grace_period(self):
        """22 s: the stages behind drain.timeout, the last spans and log lines, and the end of the runtime."""
        text = (ROOT / "src/gateway/lifecycle.rs").read_text()
        children = int(re.search(r"CHILDREN_TIMEOUT: Duration = Duration::from_secs\((\d+)\)", text)[1])
        finish = int(re.search(r"FINISH_TIMEOUT: Duration = Duration::from_secs\((\d+)\)", text)[1])
        audit = int(re.search(r"AUDIT_TIMEOUT: Duration = Duration::from_secs\((\d+)\)", text)[1])
        telemetry = (ROOT / "src/telemetry/setup.rs").read_text()
        flush = int(re.search(r"FLUSH_TIMEOUT: Duration = Duration::from_secs\((\d+)\)", telemetry)[1])
        stages = len(re.findall(r"^        self\.\w+\.end\(\)\.await;", text, re.MULTILINE))
        self.assertEqual(stages, 5)
        self.assertLessEqual(children + (stages - 1) * finish + audit + flush + 1, 22)

    def test_the_package_has_what_it_needs(self):
        for version, program in HELMS.items():
            with self.subTest(helm=version), tempfile.TemporaryDirectory() as place:
                done = helm(program, "package", CHART, "--destination", place)
                self.assertEqual(done.returncode, 0, done.stderr)
                (archive,) = Path(place).iterdir()
                with tarfile.open(archive) as packed:
                    files = {one.name.removeprefix("lockgate/"): one for one in packed.getmembers()}
                    alerts = packed.extractfile("lockgate/files/alerts.yaml").read()
                own = {str(path.relative_to(CHART)) for path in CHART.rglob("*") if not path.is_dir()}
                self.assertEqual(set(files), own - {".helmignore"} | ({".helmignore"} & set(files)))
                self.assertTrue(all(one.isfile() for one in files.values()))
                self.assertEqual(alerts, (ROOT / "deploy/prometheus/alerts.yaml").read_bytes())
                # What is packed renders what the folder does.
                example = CHART / "examples" / "replicated.yaml"
                words = ["--values", example, "--namespace", "mcp", "--kube-version", "1.34.0"]
                words += [word for api in APIS for word in ("--api-versions", api)]
                done = helm(program, "template", "lockgate", archive, *words)
                self.assertEqual(documents(done.stdout), documents((RENDERS / "replicated.yaml").read_text()))

    def test_notes_warn_of_what_is_lost(self):
        def notes(*words):
            done = helm(HELMS["4"], "install", "lockgate", CHART, *LEAST, "--dry-run=client", *words)
            self.assertEqual(done.returncode, 0, done.stderr)
            return done.stdout.split("NOTES:", 1)[1]

        self.assertIn("kubectl", notes())
        self.assertNotIn("persistence.enabled", notes())
        self.assertIn("persistence.enabled", notes("--set", "persistence.enabled=false"))
        self.assertIn("networkPolicy.enabled", notes("--set", "networkPolicy.enabled=false"))


def values_table():
    """The values as helm-docs lists them: from values.yaml, with the comments that begin with "--"."""
    texts, path, text = {}, [], None
    for line in (CHART / "values.yaml").read_text().splitlines():
        comment = re.match(r" *# ?(.*)", line)
        key = re.match(r"( *)([\w]+):", line)
        if comment and comment[1].startswith("-- "):
            text = comment[1].removeprefix("-- ")
        elif comment and text is not None:
            text += " " + comment[1]
        elif key:
            path = [*path[: len(key[1]) // 2], key[2]]
            if text is not None:
                texts[".".join(path)], text = text, None
        else:
            text = None

    def rows(node, at):
        for name, value in node.items():
            key = f"{at}{name}"
            is_group = isinstance(value, dict) and any(one.startswith(f"{key}.") for one in texts)
            if is_group or (isinstance(value, dict) and value and key not in texts):
                yield from rows(value, f"{key}.")
            else:
                yield f"| `{key}` | `{json.dumps(value)}` | {texts.get(key, '')} |"

    lines = rows(yaml.safe_load((CHART / "values.yaml").read_text()), "")
    return "\n".join(["| value | default | |", "|---|---|---|", *lines]) + "\n"


def section(defaults, at):
    """The schema of a section of the settings, from its defaults."""
    if isinstance(defaults, dict):
        inner = {name: section(value, f"{at}{name}.") for name, value in sorted(defaults.items())
                 if f"{at}{name}" not in OWN}
        return {"type": "object", "additionalProperties": False, "properties": {k: v for k, v in inner.items() if v != EMPTY}}
    if isinstance(defaults, list):
        return {"type": "array", "items": {"type": "string"}}
    return {"type": {bool: "boolean", int: "integer", str: "string", float: "number"}[type(defaults)]}


EMPTY = {"type": "object", "additionalProperties": False, "properties": {}}
# Settings with a value of the chart, from which probes, ports, mounts or the grace period follow.
OWN = {
    "public_url", "data_dir", "work_dir", "master_key", "sql.url", "redis.url", "redis.ca_file", "http.listen", "http.tls",
    "ops.listen", "admin.listen", "cluster.listen", "cluster.advertise", "cluster.replicas", "drain", "sandbox.uids",
}


class Running(unittest.TestCase):
    """The pod of one replica as a process."""

    def test_probes_and_the_manifest_of_a_running_pod(self):
        def content(*servers):
            demo = {"command": "lockgate", "args": ["__demo"], "env": {"TOKEN": "${file:/run/secrets/manifest/own/token}"}}
            return {"version": 1, "tenants": {"acme": {"auth": {"mode": "builtin"}, "servers": {one: demo for one in servers}}}}

        def objects(*servers):
            words = ["--set-json", f"manifest.content={json.dumps(content(*servers))}", "--set", "manifest.secrets={own}"]
            return render(HELMS["3"], *LEAST, *words)

        first = objects("one")
        with tempfile.TemporaryDirectory() as place:
            secrets = {"own": {"token": "secret"}}
            pod = Pod(place, workload(first)["spec"]["template"], first, secrets, address="127.0.0.41")
            env = {"PATH": programs(place), **pod.environment()}
            with open(Path(place, "log"), "wb") as log:
                process = subprocess.Popen([BINARY, *pod.arguments()], env=env, stdout=log, stderr=log)
            try:
                for kind in ("startup", "liveness", "readiness"):
                    port, path, _ = pod.probe(kind)
                    self.assertEqual(self.answers(f"http://127.0.0.41:{port}{path}", 200), 200, Path(place, "log").read_text())
                # As the pod of `helm test` does.
                words = ["healthcheck", "--set", f"ops.listen=127.0.0.41:{pod.probe('startup')[0]}"]
                done = subprocess.run([BINARY, *words], env={"LOCKGATE_DATA_DIR": "/tmp"}, capture_output=True, text=True)
                self.assertEqual(done.returncode, 0, done.stderr)
                self.assertEqual(self.status(f"http://127.0.0.41:{pod.probe('startup')[0]}/metrics"), 200)
                # As by kubectl exec, with the operator's key of the first start.
                done = subprocess.run([BINARY, "tenant", "list"], env=env, capture_output=True, text=True)
                self.assertIn("acme", done.stdout, done.stderr)
                done = subprocess.run([BINARY, "backup", Path(place, "copy.db")], env=env, capture_output=True, text=True)
                self.assertEqual((done.returncode, Path(place, "copy.db").exists()), (0, True), done.stderr)
                # The kubelet puts another manifest into the volume: a server more, without a restart.
                data = only(objects("one", "two"), "ConfigMap", "-manifest")["data"]
                publish(Path(place, "etc/lockgate/manifest"), {name: pod.here(text) for name, text in data.items()})
                end = time.monotonic() + 10
                while '"manifest.applied"' not in (text := Path(place, "log").read_text()) or "two" not in text:
                    self.assertLess(time.monotonic(), end, text)
                    time.sleep(0.1)
                process.terminate()
                self.assertEqual(process.wait(pod.grace()), 0)
            finally:
                process.kill()
                process.wait()

    def test_a_renewed_certificate_is_taken_over_in_place(self):
        objects = render(HELMS["4"], *LEAST, "--set", "tls.existingSecret=own")
        with tempfile.TemporaryDirectory() as place:
            (first, key), (second, other) = certificate_of("mcp.example.com"), certificate_of("mcp.example.com")
            secrets = {"own": {"tls.crt": first, "tls.key": key}}
            pod = Pod(place, workload(objects)["spec"]["template"], objects, secrets, address="127.0.0.41")
            env = {"PATH": programs(place), **pod.environment()}
            with open(Path(place, "log"), "wb") as log:
                process = subprocess.Popen([BINARY, *pod.arguments()], env=env, stdout=log, stderr=log)
            try:
                port, path, _ = pod.probe("readiness")
                self.assertEqual(self.answers(f"http://127.0.0.41:{port}{path}", 200), 200, Path(place, "log").read_text())
                address = ("127.0.0.41", pod.container["ports"][0]["containerPort"])
                self.assertEqual(ssl.get_server_certificate(address, timeout=5), first)
                publish(Path(place, "run/secrets/tls"), {"tls.crt": second, "tls.key": other})
                end = time.monotonic() + 60
                while ssl.get_server_certificate(address, timeout=5) != second:
                    self.assertLess(time.monotonic(), end, Path(place, "log").read_text())
                    time.sleep(0.2)
            finally:
                process.kill()
                process.wait()

    @unittest.skipUnless(os.geteuid() == 0, "a container that runs as root takes root")
    def test_two_tenants_with_the_capabilities_of_the_sandbox(self):
        said = subprocess.run([BINARY, "key", "new"], capture_output=True, text=True, check=True).stdout
        key, digest = re.search(r"^key: *(\S+)$", said, re.M)[1], re.search(r"^hash: *(\S+)$", said, re.M)[1]
        tenant = {"auth": {"mode": "keys"}, "api_keys": {"load": {"hash": digest, "subject": "load", "servers": ["demo"]}},
                  "servers": {"demo": {"command": "lockgate", "args": ["__demo"]}}}
        content = {"version": 1, "tenants": {"acme": tenant, "globex": {"auth": {"mode": "keys"}, "servers": tenant["servers"]}}}
        objects = render(HELMS["4"], *LEAST, "--set", "sandbox.uids=20000-29999",
                         "--set-json", f"manifest.content={json.dumps(content)}")
        with tempfile.TemporaryDirectory() as place:
            binary = for_others(place)
            pod = Pod(place, workload(objects)["spec"]["template"], objects, {}, address="127.0.0.41")
            for part in ("var", "var/lib"):
                os.chmod(Path(place, part), 0o711)
            own = pod.container["securityContext"]
            self.assertEqual((own["allowPrivilegeEscalation"], pod.spec["securityContext"]["runAsUser"]), (False, 0))
            added = "".join(f",+{name.lower()}" for name in own["capabilities"]["add"])
            limits = ["setpriv", "--no-new-privs", f"--bounding-set=-all{added}", "--inh-caps=-all", "--groups=10001"]
            env = {"PATH": f"{place}/bin:{os.environ['PATH']}", **pod.environment()}
            with open(Path(place, "log"), "wb") as log:
                process = subprocess.Popen([*limits, binary, *pod.arguments()], env=env, stdout=log, stderr=log)
            try:
                operations = f"http://127.0.0.41:{pod.probe('readiness')[0]}"
                self.assertEqual(self.answers(f"{operations}/readyz", 200), 200, Path(place, "log").read_text())
                params = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
                request = urllib.request.Request(
                    "http://127.0.0.41:8080/t/acme/demo/mcp",
                    json.dumps({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params}).encode(),
                    {"Host": "mcp.example.com", "Authorization": f"Bearer {key}", "Content-Type": "application/json",
                     "Accept": "application/json, text/event-stream"})
                with urllib.request.urlopen(request, timeout=20) as answer:
                    self.assertIn("serverInfo", answer.read().decode(), Path(place, "log").read_text())
                users = [int(line.split()[1]) for path in Path("/proc").glob("[0-9]*/status")
                         for line in texts(path) if line.startswith("Uid:")]
                self.assertTrue([user for user in users if 20000 <= user <= 29999], "no child has a user of its own")
                log = Path(place, "log").read_text()
                self.assertNotIn('"level":"WARN","message":"sandbox', log)
                self.assertNotIn("nothing separates", log)
                process.terminate()
                self.assertEqual(process.wait(pod.grace()), 0)
            finally:
                process.kill()
                process.wait()

    @unittest.skipUnless(os.geteuid() == 0, "mounting volumes takes root")
    def test_volumes_of_root_are_used_as_they_are_mounted(self):
        """As the kubelet mounts them for the group of fsGroup, and as provisioners of local paths make them."""
        objects = render(HELMS["4"], *LEAST)
        with tempfile.TemporaryDirectory() as place:
            binary = for_others(place)
            for name, options, files in [
                ("an emptyDir with fsGroup", "mode=2777,gid=10001", []),
                ("a claim with fsGroup", "mode=2775,gid=10001", ["lost+found"]),
                ("a local path", "mode=0777", []),
            ]:
                with self.subTest(name):
                    files = " && ".join(["true", *[f"mkdir -m 0700 '{{}}/{file}'" for file in files]])
                    self.volume(place, binary, objects, options, files)
            with self.subTest("a volume with files of others"):
                with self.assertRaisesRegex(AssertionError, "belongs to another user"):
                    self.volume(place, binary, objects, "mode=2777,gid=10001", "touch '{}/index.html'")

    def volume(self, place, binary, objects, options, fill):
        """A pod on a volume, restarted once; the volume lives as long as a first process in its namespace."""
        with tempfile.TemporaryDirectory(dir=place) as own:
            os.chmod(own, 0o711)
            pod = Pod(own, workload(objects)["spec"]["template"], objects, {}, address="127.0.0.41")
            data, work = Path(own, "var/lib/lockgate"), pod.places["/work"]
            env = {"PATH": f"{place}/bin:{os.environ['PATH']}", **pod.environment()}
            mount = " && ".join([f"mount -t tmpfs -o {options} none '{volume}'" for volume in (data, work)])
            mount = f"{mount} && {fill.format(data)} && echo mounted && exec sleep 600"
            holder = subprocess.Popen(["unshare", "--mount", "sh", "-c", mount], stdout=subprocess.PIPE, text=True)

            def inside(*words):
                enter = ["nsenter", f"--mount=/proc/{holder.pid}/ns/mnt", "setpriv", "--reuid=10001", "--regid=10001",
                         "--groups=10001", "--no-new-privs", "--bounding-set=-all", "--inh-caps=-all"]
                return [*enter, *map(str, words)]

            process = None
            try:
                self.assertEqual(holder.stdout.readline().strip(), "mounted")
                keys = []
                for _ in range(2):
                    with open(Path(own, "log"), "wb") as log:
                        process = subprocess.Popen(inside(binary, *pod.arguments()), env=env, stdout=log, stderr=log)
                    port, path, _ = pod.probe("readiness")
                    while self.status(f"http://127.0.0.41:{port}{path}") != 200:
                        self.assertIsNone(process.poll(), Path(own, "log").read_text())
                        time.sleep(0.1)
                    listed = subprocess.run(inside(binary, "tenant", "list"), env=env, capture_output=True, text=True)
                    self.assertEqual(listed.returncode, 0, listed.stderr)
                    found = subprocess.run(inside("stat", "-c", "%a %u", data / "lockgate"), capture_output=True, text=True)
                    # A directory below one with the set-group-ID bit has it too.
                    self.assertIn(found.stdout.strip(), ("700 10001", "2700 10001"), found.stderr)
                    keys.append(subprocess.run(inside("cat", data / "lockgate/master.key"), capture_output=True).stdout)
                    process.terminate()
                    self.assertEqual(process.wait(pod.grace()), 0)
                    # fsGroupChangePolicy Always: each mount opens all files to the group.
                    change = f"chgrp -R 10001 '{data}' && chmod -R ug+rwX '{data}' && find '{data}' -type d -exec chmod g+s {{}} +"
                    subprocess.run(["nsenter", f"--mount=/proc/{holder.pid}/ns/mnt", "sh", "-c", change], check=True)
                self.assertTrue(keys[0])
                self.assertEqual(keys[0], keys[1])
            finally:
                for one in filter(None, (process, holder)):
                    one.kill()
                    one.wait()
                holder.stdout.close()

    def answers(self, url, wanted):
        end = time.monotonic() + 20
        while (status := self.status(url)) != wanted and time.monotonic() < end:
            time.sleep(0.1)
        return status

    def status(self, url):
        try:
            with urllib.request.urlopen(url, timeout=2) as answer:
                return answer.status
        except urllib.error.HTTPError as error:
            return error.code
        except OSError:
            return 0


if __name__ == "__main__":
    unittest.main(verbosity=1, warnings="ignore")
