"""Prepared data far larger than memory, or of very many language pairs."""

import json
import resource
import subprocess
import sys

import pytest
from toy_text import CALL, recipe

pytestmark = [pytest.mark.nightly(part="results")]


def test_memory_does_not_grow_with_the_text(tmp_path):
    peak = "    import resource; print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)"
    peaks = []
    for lines in (20_000, 400_000):
        folder = tmp_path / str(lines)
        folder.mkdir()
        (folder / "call.py").write_text(CALL + peak)
        table = json.dumps(recipe(folder, ("ab-base",), lines, {"sample": 2000}))
        command = [sys.executable, str(folder / "call.py"), table, str(1 << 17)]
        peaks.append(int(subprocess.run(command, capture_output=True, text=True, check=True).stdout))
    assert peaks[1] - peaks[0] < 20_000  # KB; the lines of 400,000 pairs are 60 MB of strings


MANY = """
if __name__ == "__main__":
    import json, os
    from pathlib import Path
    from multidds import Mixture
    from multidds.nmt.batches import Sentences, Stream
    from multidds.nmt.config import parse_config
    from multidds.nmt.prepare import Prepared, prepare

    pairs = [f"l{i:05}-base" for i in range(10_000)]
    columns = {f"l{i:05}": "text" for i in range(10_000)} | {"base": "text"}
    data = {"folder": "prepared", "pairs": pairs, "columns": columns, "format": "jsonl", "train": "t", "dev": "t"}
    vocabulary = {"kind": "joint", "size": 17, "sample": 300, "temperature": 1}
    config = parse_config({"data": data, "vocabulary": vocabulary}, "r")
    prepare(config, processes=1)
    ready = Prepared(config)
    sets = {s: {name: Sentences(ready, name, s) for name in pairs} for s in ("train", "dev")}
    mixture = Mixture.proportional({name: len(one) for name, one in sets["train"].items()})
    stream = Stream(sets["train"], mixture, tokens=2000, accumulate=1, pool=5, mixing="example", seed=1)
    seen = sum(stream.next(5)[1] for _ in range(5))
    read = sum(len(one.tokens(1)[0]) for one in sets["dev"].values())
    print(json.dumps([seen, read, len(os.listdir("/proc/self/fd")), len(list(Path("prepared").iterdir()))]))
"""


def test_ten_thousand_pairs_need_few_files(tmp_path):
    (tmp_path / "many.py").write_text(MANY)
    lines = ["abc de fgh", "bca ed", "hgf abc bca de"]
    (tmp_path / "t").write_text("".join(json.dumps({"text": line}) + "\n" for line in lines))

    def limit():
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))

    command = [sys.executable, "many.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, preexec_fn=limit)
    assert done.returncode == 0, done.stderr
    seen, read, opened, files = json.loads(done.stdout)
    assert seen > 5
    assert read > 10_000
    assert opened < 40
    assert files < 20
