"""Turns a checkpoint of torch into a safetensors file, once: pate reads only these, which hold numbers and no code.

    python examples/convert_weights.py FILE.pth OUT.safetensors

The file is opened with `weights_only=True`, so nothing that is pickled in it runs. Give it a state_dict, or a
checkpoint that holds one under `state_dict` or `model`. Without arguments a tiny network is saved and converted.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file


def convert(source: Path, target: Path) -> int:
    """Writes the tensors of `source` to `target` and reads them back; how many there are."""
    state = torch.load(source, map_location="cpu", weights_only=True)
    for key in ("state_dict", "model"):
        state = state.get(key, state)
    others = [name for name, value in state.items() if not isinstance(value, torch.Tensor)]
    if others:
        raise SystemExit(f"{source}: {others[0]!r} is no tensor; give a state_dict")
    tensors = {name: value.detach().clone().contiguous() for name, value in state.items()}  # safetensors share nothing
    save_file(tensors, target)
    written = load_file(target)
    if written.keys() != tensors.keys() or any(not torch.equal(written[name], tensors[name]) for name in tensors):
        raise SystemExit(f"{target}: does not hold what {source} holds")
    return len(written)


def try_it() -> None:
    """The same on a made-up network, to see what happens."""
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder) / "tiny.pth", Path(folder) / "tiny.safetensors"
        network = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4))
        torch.save(network.state_dict(), source)
        print(f"{convert(source, target)} tensors of a tiny network, converted and read back")


if __name__ == "__main__":
    if len(sys.argv) == 1:
        try_it()
    elif len(sys.argv) == 3:
        print(f"{convert(Path(sys.argv[1]), Path(sys.argv[2]))} tensors")
    else:
        raise SystemExit("python examples/convert_weights.py FILE.pth OUT.safetensors")
