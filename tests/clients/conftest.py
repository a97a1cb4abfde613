"""One server for the whole session: the tiny base and two of its fine-tunes, compressed by the binary under test."""

import json
import os
import pathlib
import re
import subprocess
import threading

import openai
import pytest

REPO = pathlib.Path(__file__).resolve().parents[2]
TINY = REPO / "models" / "tiny"
VARIANTS = ("route", "sql")


def binary():
    return os.environ.get("DELTAMUX_BIN") or str(REPO / "target" / "release" / "deltamux")


@pytest.fixture(scope="session")
def server(tmp_path_factory):
    """The address of a running server; the server ends with the session."""
    variants = tmp_path_factory.mktemp("variants")
    for name in VARIANTS:
        subprocess.run(
            [binary(), "compress", "--base", TINY / "base", "--finetuned", TINY / name, "--out", variants / name,
             "--ratio", "1/16", "--calibration", TINY / "data" / f"{name}.calibration.jsonl", "--name", name],
            check=True, stdout=subprocess.DEVNULL)
    process = subprocess.Popen(
        [binary(), "serve", "--base", TINY / "base", "--variants", variants, "--port", "0"],
        stdout=subprocess.PIPE, text=True)
    # The server prints one line with its address when it is ready; a timer ends a start that hangs.
    timer = threading.Timer(120, process.kill)
    timer.start()
    line = process.stdout.readline()
    timer.cancel()
    address = re.search(r"http://[^\s\"]+", line)
    assert address, f"the server's first line names no address: {line!r}"
    yield address.group().rstrip("/")
    process.terminate()
    process.wait(timeout=60)


@pytest.fixture(scope="session")
def client(server):
    return openai.OpenAI(base_url=f"{server}/v1", api_key="none", max_retries=0, timeout=120)


@pytest.fixture(scope="session")
def base_name(client):
    """The model without a parent."""
    return next(model.id for model in client.models.list() if getattr(model, "parent", None) is None)


def heldout(task, count):
    """The first held-out items of a task: messages and the right answer."""
    lines = (TINY / "data" / f"{task}.heldout.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines[:count]]


def golden(name):
    """Prompts and greedy continuations that transformers computed."""
    return json.loads((REPO / "models" / "golden" / f"{name}.json").read_text())["cases"]
