"""Raw results of benchmarks, as files below benches/results/ from which docs/benchmarks.md is made.

A file has the command, the date, the commit, the machine, versions, the load of other programs meanwhile, and a list of
measurements. A measurement has a name, who was measured, a unit and the values of its rounds. `at` is the size at which a
curve has the values; `goal` is the ratio to the first peer, or the value, that is to be reached.
"""

import datetime
import json
import os
import platform
import re
import resource
import subprocess

FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "results")
TICK = os.sysconf("SC_CLK_TCK")
# A machine is called quiet if all other programs used less than this share of one core.
QUIET = 0.1


class Results:
    """Measurements of one run. `save` may be called after each part: a run that is cut off leaves what it has."""

    def __init__(self, name, binary, command, **versions):
        self.name = name
        self.began, self.busy, self.own = datetime.datetime.now(datetime.timezone.utc), busy_seconds(), own_seconds()
        self.file = {
            "command": command,
            "date": self.began.strftime("%Y-%m-%dT%H:%M:%SZ"),
            "commit": commit(),
            "machine": machine(),
            "versions": {"towpath": version(binary, "--version"), **versions},
            "load": {},
            "measurements": [],
        }

    def add(self, name, unit, values, subject="towpath", at=None, goal=None):
        """Records the values of the rounds of one measurement."""
        values = values if isinstance(values, list) else [values]
        entry = {"name": name, "subject": subject, "unit": unit, "at": at, "goal": goal,
                 "values": [float(f"{value:.5g}") for value in values]}
        self.file["measurements"].append({key: value for key, value in entry.items() if value is not None})

    def save(self, servers=()):
        """Writes the file. `servers` are processes that still run: their CPU is not yet counted as this run's own."""
        seconds = (datetime.datetime.now(datetime.timezone.utc) - self.began).total_seconds()
        own = own_seconds() - self.own + sum(cpu_ns([process]) for process in servers) / 1e9
        others = max(0.0, busy_seconds() - self.busy - own) / seconds
        self.file["load"] = {"seconds": round(seconds), "other_programs_cores": round(others, 2), "quiet": others < QUIET,
                             "nice": os.getpriority(os.PRIO_PROCESS, 0)}
        os.makedirs(FOLDER, exist_ok=True)
        with open(f"{FOLDER}/{self.name}.json.new", "w") as file:
            # A line for each measurement: changes of the file can be read.
            head = {key: value for key, value in self.file.items() if key != "measurements"}
            lines = ",\n  ".join(json.dumps(entry, ensure_ascii=False) for entry in self.file["measurements"])
            text = json.dumps(head, indent=1, ensure_ascii=False).removesuffix("\n}")
            file.write(f'{text},\n "measurements": [\n  {lines}\n ]\n}}\n')
        os.replace(f"{FOLDER}/{self.name}.json.new", f"{FOLDER}/{self.name}.json")


def cpu_ns(pids):
    """CPU time of processes with all their threads, in nanoseconds."""
    total = 0
    for pid in pids:
        for task in os.listdir(f"/proc/{pid}/task"):
            try:
                with open(f"/proc/{pid}/task/{task}/schedstat") as stat:
                    total += int(stat.read().split()[0])
            except FileNotFoundError:
                pass  # A thread that ended.
    return total


def busy_seconds():
    """CPU seconds of all programs on all cores since the machine started."""
    with open("/proc/stat") as stat:
        user, nice, system, _, _, interrupts, soft = map(int, stat.readline().split()[1:8])
    return (user + nice + system + interrupts + soft) / TICK


def own_seconds():
    usages = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def commit():
    """Commit of the program: TOWPATH_BENCH_COMMIT names it if it was built elsewhere, else that of this folder."""
    folder = os.path.dirname(FOLDER)
    ask = lambda *args: subprocess.run(["git", "-C", folder, *args], capture_output=True, text=True).stdout.strip()
    return os.environ.get("TOWPATH_BENCH_COMMIT") or ask("rev-parse", "--short=12", "HEAD") or "unknown"


def version(*command):
    """First line that a program prints about its version; Nginx prints it as an error."""
    done = subprocess.run(command, capture_output=True, text=True)
    return (done.stdout or done.stderr).strip().splitlines()[0]


def machine():
    with open("/proc/cpuinfo") as file:
        model = re.search(r"model name\s*: (.*)", file.read())
    with open("/proc/meminfo") as file:
        memory = int(re.search(r"MemTotal:\s+(\d+)", file.read()).group(1))
    return {"processor": model.group(1).strip() if model else platform.machine(), "cores": os.cpu_count(),
            "memory_gib": round(memory / 1024 / 1024), "system": f"{platform.system()} {platform.release()}"}
