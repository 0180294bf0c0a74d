"""The same training with several seeds: median and range of its results.

    python examples/seeds.py --seeds 5 forest --mu 0 --epochs 20

All other arguments are passed on to `rop train`.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys

SHOWN = {
    "test_accuracy": (100, "test accuracy, %"),
    "rho": (1, "ρ, whole training set"),
    "batch_rho": (1, "ρ, last epoch's batches"),
    "collapsed": (1, "collapsed"),
    "hvps": (1, "H·v products"),
    "seconds": (1, "training time, s"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5, help="seeds 0, 1, … (default 5)")
    options, training = parser.parse_known_args()
    results = []
    for seed in range(options.seeds):
        command = [sys.executable, "-m", "rop", "train", *training, "--seed", str(seed), "--quiet", "--json"]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        results.append(json.loads(done.stdout.splitlines()[-1]))
    print(f"rop train {' '.join(training)}, seeds 0 to {options.seeds - 1}")
    for name, (factor, label) in SHOWN.items():
        values = [factor * result[name] for result in results if result[name] is not None]
        if not values:  # there is no ρ of batches without the penalty
            continue
        print(
            f"  {label:24}median {statistics.median(values):10.4g}   {min(values):10.4g} to {max(values):.4g}   "
            + " ".join(f"{value:.4g}" for value in values)
        )


if __name__ == "__main__":
    main()
