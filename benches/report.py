"""Rewrites docs/benchmarks.md and its curves from the raw results below benches/results/.

Usage: python3 benches/report.py [--check]

With --check nothing is written, and the exit code is 1 if the page or a curve is not what the results give.
"""

import glob
import io
import json
import math
import os
import statistics
import sys

import matplotlib
from matplotlib import pyplot
from matplotlib.ticker import FuncFormatter, NullLocator

import results
from sections import SECTIONS

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PAGE, IMAGES = "docs/benchmarks.md", "docs/images/benchmarks"

INTRODUCTION = """# Benchmarks

<!-- Made by `cargo xtask bench report` from benches/results/. Edit benches/sections.py instead. -->

What towpath costs beside its peers, and how its cost grows. Use it to judge a change, or whether towpath is fast enough for
you; [capacity planning](scaling.md) says what to make of the figures.

Each section has the command that repeats it. Commands write raw results to `benches/results/`, and `cargo xtask bench
report` makes this page of them. Values are medians of the rounds of one run, with the least and the most in parentheses
where they differ; curves show the least, because other programs only add to a cost. Ratios compare servers within one run,
on one machine. Smaller is better, except for rates.

A run on a machine that other programs use says so: its times are too long by their share, its CPU by a little, and ratios
hold best.
"""

# Colours of lines that stand out from white and from black; the first is replaced by a light one on dark pages.
INK, COLOURS = "#333333", ("#2a78d6", "#d9631e", "#3a9a52", "#9b59b6", "#c0392b", "#8a8a2b")
LOOK = {"svg.fonttype": "none", "font.size": 10, "font.sans-serif": ["DejaVu Sans", "sans-serif"], "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True,
        "grid.color": "#888888", "grid.alpha": 0.3, "grid.linewidth": 0.6} | dict.fromkeys(
            ("text.color", "axes.labelcolor", "axes.titlecolor", "axes.edgecolor", "xtick.color", "ytick.color"), INK)
DARK = f"""<style>@media (prefers-color-scheme: dark) {{
 [style*="fill: {INK}"] {{ fill: #d6d6d6 !important }} [style*="stroke: {INK}"] {{ stroke: #a0a0a0 !important }}
}}</style>
 """


def main(check):
    files = load()
    made = {PAGE: INTRODUCTION}
    for section in SECTIONS:
        chosen = [(name, files[name]) for name in files if name == section.results or name.startswith(section.results + "-of-")]
        if chosen:
            made[PAGE] += f"\n## {section.title}\n\n{section.text.strip()}\n"
        for name, file in chosen:
            made[PAGE] += part(section, name, file, made)
    unknown = [name for name in files if not any(name == s.results or name.startswith(s.results + "-of-") for s in SECTIONS)]
    if unknown:
        sys.exit(f"benches/sections.py has no section for {', '.join(unknown)}")
    finish(made, check)


def load():
    files = {}
    for path in sorted(glob.glob(f"{results.FOLDER}/*.json")):
        with open(path) as file:
            files[os.path.basename(path).removesuffix(".json")] = json.load(file)
    return files


def finish(made, check):
    """Writes the files and removes curves that are made no more; or names those that differ."""
    old = {os.path.relpath(path, ROOT) for path in glob.glob(f"{ROOT}/{IMAGES}/*.svg")}
    differs = sorted(old - set(made)) + [path for path, text in made.items() if read(path) != text]
    if check and differs:
        sys.exit(f"{', '.join(differs)}: not what benches/results/ gives; run `cargo xtask bench report`")
    if not check:
        os.makedirs(f"{ROOT}/{IMAGES}", exist_ok=True)
        for path in old - set(made):
            os.remove(f"{ROOT}/{path}")
        for path, text in made.items():
            with open(f"{ROOT}/{path}", "w") as file:
                file.write(text)


def read(path):
    try:
        with open(f"{ROOT}/{path}") as file:
            return file.read()
    except FileNotFoundError:
        return None


def part(section, name, file, made):
    """Text of one file of results; adds its curves to `made`."""
    text = f"\n{origin(file)}\n"
    curves = [entry for entry in file["measurements"] if "at" in entry]
    for number, (title, names) in enumerate(section.curves, 1):
        chosen = [entry for entry in curves if entry["name"] in names]
        if chosen:
            path = f"{IMAGES}/{name}-{number}.svg"
            made[path] = curve(title, section.size, names, chosen)
            text += f"\n![{title}, by the number of {section.size}]({os.path.relpath(path, 'docs')})\n"
    if curves:
        text += "\n" + growth_table(section.size, curves)
    if len(curves) < len(file["measurements"]):
        text += "\n" + comparison([entry for entry in file["measurements"] if "at" not in entry])
    return text


def origin(file):
    machine, load = file["machine"], file["load"]
    versions = "; ".join(short_version(name, text) for name, text in file["versions"].items())
    state = "quiet" if load["quiet"] else f"not quiet: other programs used {load['other_programs_cores']} cores meanwhile"
    state += f" (this run had niceness {load['nice']})" if load.get("nice") else ""
    return (f"`{file['command']}`, {file['date'][:10]}, commit {file['commit']}; {machine['processor']}, {machine['cores']} cores, "
            f"{machine['memory_gib']} GiB, {machine['system']}; {state}. Versions: {versions}.")


def short_version(name, text):
    text = text.split(" (")[0].replace("nginx version: ", "")
    return text if text.startswith(name) else f"{name} {text}"


def by_name(entries):
    grouped = {}
    for entry in entries:
        grouped.setdefault(entry["name"], []).append(entry)
    return grouped


def median(entry):
    return statistics.median(entry["values"])


def least(entry):
    """The least of the rounds: other programs on the machine only add to a cost."""
    return min(entry["values"])


def number(value):
    """A number with three digits that count."""
    if value == 0:
        return "0"
    digits = max(0, 2 - math.floor(math.log10(abs(value))))
    return f"{round(value, digits) if digits else float(f'{value:.3g}'):,.{digits}f}"


def shown(entry):
    values = entry["values"]
    spread = f" ({number(min(values))} to {number(max(values))})" if len(values) > 1 else ""
    return number(median(entry)) + spread


def growth_table(size, entries):
    """The least value at each size, and the factor of the last tenfold."""
    sizes = sorted({entry["at"] for entry in entries})
    lines = [f"| {size} | unit | " + " | ".join(f"{at:,}" for at in sizes) + " | last tenfold |",
             "|---|---|" + "---:|" * (len(sizes) + 1)]
    for name, points in by_name(entries).items():
        values = {entry["at"]: least(entry) for entry in points}
        cells = [number(values[at]) if at in values else "" for at in sizes]
        last = [values[at] for at in sizes if at in values][-2:]
        factor = f"× {number(last[1] / last[0])}" if len(last) == 2 and last[0] else ""
        lines.append(f"| {name} | {points[0]['unit']} | " + " | ".join(cells) + f" | {factor} |")
    return "\n".join(lines) + "\n"


def comparison(entries):
    """A row for each measurement: towpath, and what was measured beside it."""
    has_goals = any("goal" in entry for entry in entries)
    lines = ["| measured | unit | towpath | beside | towpath / it |" + (" to reach |" if has_goals else ""),
             "|---|---|---:|---|---|" + ("---|" if has_goals else "")]
    for name, group in by_name(entries).items():
        own = next((entry for entry in group if entry["subject"] == "towpath"), None)
        peers = [entry for entry in group if entry is not own]
        beside = "; ".join(f"{entry['subject']} {shown(entry)}" for entry in peers)
        ratios = "; ".join(number(median(own) / median(entry)) if own and median(entry) else "-" for entry in peers)
        goal = next((f"{entry['goal']}" for entry in group if "goal" in entry), "")
        lines.append(f"| {name} | {group[0]['unit']} | {shown(own) if own else ''} | {beside} | {ratios} |"
                     + (f" {goal} |" if has_goals else ""))
    return "\n".join(lines) + "\n"


def curve(title, size, names, entries):
    """A line for each name over the logarithm of the size: logarithmic growth is straight. Equal entries give equal bytes."""
    matplotlib.rcParams.update(LOOK | {"svg.hashsalt": title})
    figure, axes = pyplot.subplots(figsize=(7.6, 3.6), layout="constrained")
    for name, colour in zip(names, COLOURS):
        points = sorted((entry["at"], least(entry)) for entry in entries if entry["name"] == name)
        if points:
            axes.plot(*zip(*points), "o-", label=name, color=colour, markersize=4)
    axes.set(title=title, xlabel=size, xscale="log", ylim=(0, None))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
    axes.xaxis.set_minor_locator(NullLocator())
    figure.legend(loc="outside lower left", ncols=2, frameon=False)
    text = io.StringIO()
    figure.savefig(text, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    pyplot.close(figure)
    first = text.getvalue().index("<defs>")
    return text.getvalue()[:first] + DARK + text.getvalue()[first:]


if __name__ == "__main__":
    main("--check" in sys.argv[1:])
