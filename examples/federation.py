"""A federation on this machine: a server, five clients, each with a file of its own.

Every command below is one that you would give on a machine of its own; docs/deploy.md
goes through them. `make federation` runs this.
"""

import csv
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits

FOLDER = Path(sys.argv[1] if len(sys.argv) > 1 else "runs/federation")
ROUNDS = int(sys.argv[2]) if len(sys.argv) > 2 else 5
CLIENTS = 5
CONFIG = """\
rounds = {rounds}
algorithm = {{ name = "ditto", lr = 0.1, epochs = 5 }}
data = {{ name = "file", path = "each client's own", target = "digit" }}
model = {{ name = "mlp" }}
engine = {{ device = "cpu", compile = "off", threads = 1 }}
"""


def write_files(folder: Path) -> list[Path]:
    """Some scans of digits, all ten at every client, but not equally often."""
    x, y = load_digits(return_X_y=True)
    draw = np.random.default_rng(0)
    some = draw.permutation(len(y))[:500]
    x, y = x[some], y[some]
    shares = draw.dirichlet([1.0] * CLIENTS, size=10)
    owner = np.array([draw.choice(CLIENTS, p=shares[digit]) for digit in y])
    owner[:100] = np.arange(100) % CLIENTS  # so that all know every digit
    files = [folder / f"hospital-{n + 1}.csv" for n in range(CLIENTS)]
    for n, path in enumerate(files):
        with path.open("w", newline="") as file:
            lines = csv.writer(file)
            lines.writerow([*(f"pixel{p}" for p in range(64)), "digit"])
            lines.writerows(
                [*a, b] for a, b in zip(x[owner == n], y[owner == n], strict=True)
            )
    return files


def main() -> None:
    """Certificates, a server, five clients; everybody's report at the end."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    fedloom = [str(Path(sys.executable).parent / "fedloom")]
    config, keys = FOLDER / "run.toml", FOLDER / "certificates"
    config.write_text(CONFIG.format(rounds=ROUNDS))
    files = write_files(FOLDER)
    if not keys.exists():
        subprocess.run([*fedloom, "certs", keys, "--clients", str(CLIENTS)], check=True)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    serve = [*fedloom, "serve", config, "--clients", str(CLIENTS), "--tls", keys]
    serve += ["--out", FOLDER / "run", "--host", "127.0.0.1", "--port", port]
    processes = [subprocess.Popen(serve)]
    for n, file in enumerate(files, start=1):
        join = [*fedloom, "join", f"127.0.0.1:{port}", "--ca", keys / "ca.pem"]
        join += ["--client-key", keys / f"client-{n}", "--data", file]
        join += ["--name", file.stem, "--home", FOLDER / file.stem]
        with (FOLDER / f"{file.stem}.log").open("w") as log:
            processes.append(subprocess.Popen(join, stdout=log, stderr=log))
    try:
        codes = [process.wait() for process in processes]
    finally:
        for process in processes:
            process.terminate()
            process.wait()
    print(f"\nWhat {files[0].stem} has at home:\n")
    print((FOLDER / f"{files[0].stem}.log").read_text())
    sys.exit(max(codes))


if __name__ == "__main__":
    main()
