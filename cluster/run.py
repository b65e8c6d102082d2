"""pate run on a cluster's head, for the cluster launcher.

    ray submit cluster/CLUSTER.yaml cluster/run.py configs/mnist.yaml [options of pate run]

Ray copies this file to the head and starts it there; the project is in ~/pate, and runs go to ~/pate-runs. The same
command again goes on with the newest run of the config, whatever ended it.
"""

import os
import sys
from pathlib import Path

project = Path.home() / "pate"
os.chdir(project)  # so that configs/… means the same as on your machine
os.environ.setdefault("PATE_RUNS", str(Path.home() / "pate-runs"))
command = ["pate", "run", "--resume=auto", *sys.argv[1:], "--address", "auto"]
os.execvp("bash", ["bash", "-c", '. cluster/env.sh && exec "$@"', "bash", *command])
