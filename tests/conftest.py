"""Fixtures shared by all tests."""

import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def data() -> Path:
    """The folder of benchmark files (HumanEvalPlus.jsonl.gz, ...), named by the environment variable CODEA1_DATA."""
    folder = os.environ.get("CODEA1_DATA")
    if not folder:
        pytest.skip("CODEA1_DATA is not set: it names the folder with the benchmark files")
    return Path(folder)
