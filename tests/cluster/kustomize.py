"""As much of kustomize as cluster/kubernetes uses, so that its tests need no kubectl. Anything else is an error.

Where there is a kubectl, test_kubernetes.py compares this with `kubectl kustomize`.
"""

from __future__ import annotations

import copy
import shutil
import subprocess
from pathlib import Path
from typing import Any

import yaml

Document = dict[str, Any]
_KEYS = {"apiVersion", "kind", "namespace", "resources", "components", "configMapGenerator", "generatorOptions"}
_KEYS |= {"images", "patches", "replacements"}


def render(folder: Path) -> list[Document]:
    """What `kubectl kustomize FOLDER` prints, in some order."""
    documents: list[Document] = []
    _apply(folder, documents)
    return documents


def kubectl(folder: Path) -> list[Document] | None:
    """The same by the real program; None where it is not installed."""
    if shutil.which("kubectl") is None:
        return None
    shown = subprocess.run(["kubectl", "kustomize", str(folder)], capture_output=True, text=True)
    if shown.returncode:
        raise RuntimeError(shown.stderr)
    return list(yaml.safe_load_all(shown.stdout))


def _apply(folder: Path, documents: list[Document]) -> None:
    told = yaml.safe_load((folder / "kustomization.yaml").read_text())
    if unknown := set(told) - _KEYS:
        raise ValueError(f"{folder}: {unknown}: not known here")
    for name in told.get("resources", []):
        path = folder / name
        documents += render(path) if path.is_dir() else list(yaml.safe_load_all(path.read_text()))
    for name in told.get("components", []):
        _apply(folder / name, documents)
    documents += [_config_map(folder, generator) for generator in told.get("configMapGenerator", [])]
    for document in documents:
        if "namespace" in told and document["kind"] != "Namespace":
            document["metadata"]["namespace"] = told["namespace"]
    for patch in told.get("patches", []):
        _patch(folder, patch, documents)
    for image in told.get("images", []):
        _name_images(documents, image)
    for replacement in told.get("replacements", []):
        _replace(replacement, documents)


def _config_map(folder: Path, generator: Document) -> Document:
    lines = [line for name in generator["envs"] for line in (folder / name).read_text().splitlines()]
    data = dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": generator["name"]}, "data": data}


def _chosen(documents: list[Document], kind: str, name: str | None = None) -> list[Document]:
    chosen = [d for d in documents if d["kind"] == kind and name in (None, d["metadata"]["name"])]
    if not chosen:
        raise ValueError(f"{kind} {name}: there is none")
    return chosen


def _patch(folder: Path, patch: Document, documents: list[Document]) -> None:
    change = yaml.safe_load(patch["patch"] if "patch" in patch else (folder / patch["path"]).read_text())
    if isinstance(change, dict):
        if change.get("$patch") != "delete":
            raise ValueError(f"{folder}: of strategic patches only deletions are known here")
        documents.remove(*_chosen(documents, change["kind"], change["metadata"]["name"]))
        return
    for document in _chosen(documents, patch["target"]["kind"], patch["target"]["name"]):
        for step in change:
            *way, last = step["path"].strip("/").split("/")
            place: Any = document
            for key in way:
                place = place[int(key) if isinstance(place, list) else key]
            if step["op"] == "add" and last == "-":
                place.append(copy.deepcopy(step["value"]))
            elif step["op"] == "add" or (step["op"] == "replace" and last in place):
                place[last] = copy.deepcopy(step["value"])
            else:
                raise ValueError(f"{folder}: {step['op']} {step['path']}")


def _name_images(node: Any, image: Document) -> None:
    if isinstance(node, list):
        for item in node:
            _name_images(item, image)
    elif isinstance(node, dict):
        if node.get("image") == image["name"]:
            end = f"@{image['digest']}" if "digest" in image else f":{image['newTag']}"
            node["image"] = image["newName"] + end
        for item in node.values():
            _name_images(item, image)


def _replace(replacement: Document, documents: list[Document]) -> None:
    source = replacement["source"]
    (found,) = _chosen(documents, source["kind"], source["name"])
    for target in replacement["targets"]:
        for document in _chosen(documents, target["select"]["kind"]):
            for path in target["fieldPaths"]:
                *way, last = path.split(".")
                place = document
                for key in way:
                    place = place[key]
                place[last] = copy.deepcopy(found[source["fieldPath"]])
