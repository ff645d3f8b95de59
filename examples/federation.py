"""A federation on this machine: a server, five clients, each with a file of its own.

Every command is one that you would give on a machine of its own; docs/deploy.md goes
through them. `make federation` runs this.
"""

import csv
import subprocess
import sys
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits

FOLDER = Path("runs/federation")
FEDLOOM, PORT = (sys.executable, "-m", "fedloom"), "19092"
NAMES = [f"hospital-{n}" for n in range(1, 6)]
CONFIG = """\
rounds = 4
evaluate_every = 2
algorithm = { name = "ditto", lr = 0.1, epochs = 5 }
data = { name = "file", path = "each client's own", target = "digit" }
engine = { device = "cpu", compile = "off", threads = 1 }
"""

# Some scans of digits, all ten at every client, but not equally often.
FOLDER.mkdir(parents=True, exist_ok=True)
(FOLDER / "run.toml").write_text(CONFIG, encoding="utf-8")
draw = np.random.default_rng(0)
x, y = load_digits(return_X_y=True)
some = draw.permutation(len(y))[:500]
x, y, shares = x[some], y[some], draw.dirichlet([1.0] * len(NAMES), size=10)
owner = np.array([draw.choice(len(NAMES), p=shares[digit]) for digit in y])
owner[:100] = np.arange(100) % len(NAMES)
for n, name in enumerate(NAMES):
    with (FOLDER / f"{name}.csv").open("w", encoding="utf-8", newline="") as file:
        lines = csv.writer(file)
        lines.writerow([*(f"pixel{p}" for p in range(x.shape[1])), "digit"])
        lines.writerows(np.column_stack([x, y])[owner == n].astype(int))

keys = FOLDER / "tls"
if not keys.exists():
    subprocess.run([*FEDLOOM, "certs", keys, "--clients", "5"], check=True)
serve = [*FEDLOOM, "serve", FOLDER / "run.toml", "--clients", "5", "--tls", keys]
serve += ["--out", FOLDER / "run", "--host", "127.0.0.1", "--port", PORT]
processes = [subprocess.Popen(serve)]
for n, name in enumerate(NAMES, start=1):
    join = [*FEDLOOM, "join", f"127.0.0.1:{PORT}", "--data", FOLDER / f"{name}.csv"]
    join += ["--name", name, "--client-key", keys / f"client-{n}"]
    join += ["--ca", keys / "ca.pem", "--home", FOLDER / name]
    with (FOLDER / f"{name}.log").open("wb") as log:
        processes.append(subprocess.Popen(join, stdout=log, stderr=log))
try:
    code = processes[0].wait()
    for process in processes[1:] if code == 0 else ():
        code = code or process.wait(300)
finally:
    for process in processes:
        process.terminate()  # what has ended already stays so
        process.wait()
said = (FOLDER / f"{NAMES[0]}.log").read_text(encoding="utf-8")
print(f"\nWhat {NAMES[0]} has:\n\n{said}")
sys.exit(code)
