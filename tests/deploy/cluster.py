"""A stand-in for a cluster: Helm's renders, and pods as processes with the files, the environment and the
arguments that the kubelet would give them.

A process has no network and no root directory of its own. So the addresses of its listeners, "0.0.0.0" and
"127.0.0.1", become the address of its pod, and a path below a mount becomes one below the pod's directory (that of
children, whose length is bounded, one of its own); nothing else is changed."""

import atexit
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "helm" / "lockgate"
EXAMPLES = sorted((CHART / "examples").glob("*.yaml"))
APIS = ["gateway.networking.k8s.io/v1", "monitoring.coreos.com/v1"]


def variable(name):
    """A program that scripts/test installs."""
    value = os.environ.get(name)
    assert value, f"{name} names no program: run scripts/test once, or set it"
    return value


def helm(program, *words):
    """Runs Helm, away from the settings of its user."""
    place = os.environ.get("TMPDIR", "/tmp")
    env = {"PATH": os.environ["PATH"], "HOME": place, "KUBECONFIG": "/dev/null"}
    return subprocess.run([program, *map(str, words)], env=env, capture_output=True, text=True, timeout=60)


def template(program, *words, release="lockgate", namespace="mcp", version="1.34.0", apis=APIS):
    apis = [word for api in apis for word in ("--api-versions", api)]
    words = [*words, "--namespace", namespace, "--kube-version", version, *apis]
    return helm(program, "template", release, CHART, *words)


def render(program, *words, **options):
    """The objects of a release."""
    done = template(program, *words, **options)
    assert done.returncode == 0, done.stderr
    return [one for one in yaml.safe_load_all(done.stdout) if one]


def only(objects, kind, ending=""):
    found = [one for one in objects if one["kind"] == kind and one["metadata"]["name"].endswith(ending)]
    assert len(found) == 1, f"{kind} {ending}: {[one['metadata']['name'] for one in found]}"
    return found[0]


def workload(objects):
    return next(one for one in objects if one["kind"] in ("Deployment", "StatefulSet"))


class Pod:
    """The files, arguments and environment of the first container of a pod template."""

    def __init__(self, directory, template, objects, secrets, address="127.0.0.1"):
        self.directory, self.address = Path(directory), address
        self.spec = template["spec"]
        self.container = self.spec["containers"][0]
        self.objects, self.secrets = objects, secrets
        mounts = {mount["mountPath"]: mount["name"] for mount in self.container["volumeMounts"]}
        # The directory for temporary files is the machine's.
        self.mounts = {path: name for path, name in mounts.items() if path != "/tmp"}
        claims = {"data"} - {volume["name"] for volume in self.spec["volumes"]}
        self.volumes = {volume["name"]: volume for volume in self.spec["volumes"]}
        self.volumes |= {name: {"emptyDir": {}} for name in claims}
        self.places = {path: self.directory / path.lstrip("/") for path in self.mounts}
        if "/work" in self.places:
            # Paths below it are bounded.
            self.places["/work"] = Path(tempfile.mkdtemp(prefix="w", dir="/tmp"))
            atexit.register(shutil.rmtree, self.places["/work"], ignore_errors=True)
        for path, name in self.mounts.items():
            self.mount(path, self.volumes[name])

    def here(self, text):
        """A text of the pod as its process has to read it."""
        paths = "|".join(re.escape(path) for path in sorted(self.mounts, key=len, reverse=True))
        text = re.sub(rf"(?<![\w./-])({paths})(?![\w.-])", lambda found: str(self.places[found[1]]), text)
        return re.sub(r"""(?<=["/])(0\.0\.0\.0|127\.0\.0\.1|\[::1?\])(?=:(8080|9090|9091|7080)\b)""", self.address, text)

    def mount(self, path, volume):
        files = self.files(volume)
        target = self.places[path]
        target.mkdir(parents=True, exist_ok=True)
        if files is not None:
            publish(target, {name: self.here(text) for name, text in files.items()})

    def files(self, volume):
        """The files of a volume of texts; none of one that is written to."""
        if "configMap" in volume:
            return only(self.objects, "ConfigMap", volume["configMap"]["name"])["data"]
        if "secret" in volume:
            return self.secrets[volume["secret"]["secretName"]]
        if "projected" in volume:
            sources = [source["secret"] for source in volume["projected"]["sources"]]
            return {item["path"]: self.secrets[source["name"]][item["key"]]
                    for source in sources for item in source["items"]}
        return None

    def environment(self):
        """What the kubelet sets: `$(NAME)` is a variable that stands before."""
        fields = {"status.podIP": self.address}
        env = {}
        for entry in self.container.get("env", []):
            value = entry.get("value")
            if "valueFrom" in entry:
                value = fields[entry["valueFrom"]["fieldRef"]["fieldPath"]]
            value = re.sub(r"\$\((\w+)\)", lambda found: env[found[1]], value)
            env[entry["name"]] = self.here(value)
        return env

    def arguments(self):
        return [self.here(word) for word in self.container["args"]]

    def grace(self):
        return self.spec["terminationGracePeriodSeconds"]

    def before_stop(self):
        return self.container.get("lifecycle", {}).get("preStop", {}).get("sleep", {}).get("seconds", 0)

    def probe(self, kind):
        """Port and path, and the times of a probe."""
        probe = self.container[f"{kind}Probe"]
        ports = {port["name"]: port["containerPort"] for port in self.container["ports"]}
        return ports[probe["httpGet"]["port"]], probe["httpGet"]["path"], probe


def publish(directory, files):
    """Writes the files of a volume as the kubelet does: a new directory, and then one link that changes."""
    number = len(list(directory.glob("..2*")))
    place = directory / f"..2026_11_23_00_00_00.{number}"
    place.mkdir()
    for name, text in files.items():
        (place / name).write_text(text)
    link = directory / "..data_tmp"
    link.symlink_to(place.name)
    link.rename(directory / "..data")
    for name in files:
        if not (directory / name).is_symlink():
            (directory / name).symlink_to(f"..data/{name}")
