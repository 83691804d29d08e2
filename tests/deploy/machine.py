"""A Debian machine of its own: systemd as process 1 in new namespaces, over a root of debootstrap.

The root is made once and kept in the cache; each machine writes to a layer of its own, in memory. It has no
network but its own loopback. Needs root, debootstrap and a cgroup v2 that may be written.
"""

import hashlib
import os
import pathlib
import shutil
import subprocess
import tempfile
import time

# The oldest release that has what the unit needs; another by the environment.
RELEASE = os.environ.get("DEBIAN_RELEASE", "bookworm")
# What the package depends on, and runtimes of servers that have to work under the unit.
PACKAGES = "systemd,systemd-sysv,dbus,libgcc-s1,init-system-helpers,ca-certificates,python3,nodejs"
# Its judge. debootstrap cannot order what it depends on.
MORE = ["lintian"]

START = r"""
set -eu
root=$1 upper=$2
mount --make-rprivate /
mount -t tmpfs -o mode=755 tmpfs "$upper"
mkdir "$upper/changes" "$upper/work" "$upper/root"
mount -t overlay -o "lowerdir=$root,upperdir=$upper/changes,workdir=$upper/work" overlay "$upper/root"
cd "$upper/root"
mount -t proc proc proc
mount -t sysfs -o ro sysfs sys
mount -t cgroup2 cgroup2 sys/fs/cgroup
mount -t tmpfs -o mode=755 tmpfs run
mount -t tmpfs -o mode=1777 tmpfs tmp
mount -t tmpfs -o mode=755 tmpfs dev
for name in null zero full random urandom tty; do touch "dev/$name"; mount --bind "/dev/$name" "dev/$name"; done
mkdir dev/pts dev/shm before
mount -t devpts -o newinstance,ptmxmode=0666 devpts dev/pts
ln -s pts/ptmx dev/ptmx
ln -s /proc/self/fd dev/fd
mount -t tmpfs -o mode=1777 tmpfs dev/shm
pivot_root . before
umount -l before
rmdir before
# As systemd expects of who starts it in a container: the mounts of credentials have to arrive.
mount --make-rshared /
exec env -i container=other PATH=/usr/sbin:/usr/bin:/sbin:/bin /lib/systemd/systemd --system </dev/null >/dev/null 2>&1
"""


def base(cache):
    """The root that all machines share, made if it is missing."""
    key = hashlib.sha256(f"{RELEASE} {PACKAGES} {MORE}".encode()).hexdigest()[:16]
    root = pathlib.Path(cache) / "debian" / key
    if not (root / ".complete").exists():
        shutil.rmtree(root, ignore_errors=True)
        root.parent.mkdir(parents=True, exist_ok=True)
        command = ["debootstrap", "--variant=minbase", f"--include={PACKAGES}", RELEASE, str(root)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        install = ["apt-get", "install", "--yes", "-qq", "--no-install-recommends", *MORE]
        env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C"}
        subprocess.run(["chroot", root, *install], check=True, stdout=subprocess.DEVNULL, env=env)
        (root / ".complete").touch()
    return root


def cgroup():
    """The place where cgroup v2 is mounted."""
    for line in pathlib.Path("/proc/mounts").read_text().splitlines():
        _, place, kind, *_ = line.split()
        if kind == "cgroup2":
            return pathlib.Path(place)
    raise RuntimeError("no cgroup v2 is mounted")


class Machine:
    """A running machine; ends with everything in it."""

    def __init__(self, cache):
        root = base(cache)
        self.upper = tempfile.mkdtemp(prefix="lockgate-machine-")
        self.group = cgroup() / f"lockgate-machine-{os.getpid()}"
        self.group.mkdir()
        enter = 'echo $$ >"$0/cgroup.procs"; exec unshare --pid --mount --uts --ipc --net --cgroup --fork "$@"'
        words = [str(self.group), "bash", "-c", START, "machine", str(root), self.upper]
        self.process = subprocess.Popen(["bash", "-c", enter, *words])
        self.pid = None

    def boot(self):
        """Waits until systemd has started everything."""
        children = f"/proc/{self.process.pid}/task/{self.process.pid}/children"
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            found = pathlib.Path(children).read_text().split()
            if found and "systemd" in pathlib.Path(f"/proc/{found[0]}/cmdline").read_text():
                self.pid = int(found[0])
                state = self.run("systemctl", "is-system-running", check=False).stdout.strip()
                if state in ("running", "degraded"):
                    return
            if self.process.poll() is not None:
                raise RuntimeError("the machine does not boot")
            time.sleep(0.1)
        raise RuntimeError("the machine does not boot in a minute")

    def run(self, *words, check=True, timeout=120, **more):
        """Runs a command in the machine."""
        command = ["nsenter", "--all", f"--target={self.pid}", "--", "env", "-i", "PATH=/usr/sbin:/usr/bin:/sbin:/bin"]
        done = subprocess.run([*command, *words], capture_output=True, text=True, timeout=timeout, **more)
        if check and done.returncode != 0:
            raise AssertionError(f"{words}: {done.returncode}\n{done.stdout}{done.stderr}")
        return done

    def write(self, path, text, mode=0o644):
        """Writes a file in the machine."""
        self.run("tee", path, input=text)
        self.run("chmod", f"{mode:o}", path)

    def put(self, source, path):
        """Copies a file into the machine."""
        with open(source, "rb") as file:
            nsenter = ["nsenter", "--all", f"--target={self.pid}", "--", "tee", path]
            subprocess.run(nsenter, stdin=file, stdout=subprocess.DEVNULL, check=True)

    def end(self):
        """Ends every process, and removes what was written."""
        (self.group / "cgroup.kill").write_text("1")
        self.process.wait(timeout=30)
        deadline = time.monotonic() + 10
        while self.group.exists() and time.monotonic() < deadline:
            for folder, _, _ in os.walk(self.group, topdown=False):
                try:
                    os.rmdir(folder)
                except OSError:
                    time.sleep(0.05)
        os.rmdir(self.upper)
