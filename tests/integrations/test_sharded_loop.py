"""The example with a model in shards, in two processes."""

import pytest
import sharded_loop
from ranks import run_on_ranks


def main(folder):
    return sharded_loop.main(folder, steps=60, save_every=30)


@pytest.mark.slow
def test_the_sharded_loop_goes_on_from_its_checkpoint_as_if_nothing_had_been(tmp_path):
    for name in ("whole", "again"):
        (tmp_path / name).mkdir()
    whole = run_on_ranks(main, tmp_path / "whole", 2, tmp_path)
    assert whole[0] == whole[1]
    (tmp_path / "newest").write_text("step-30")
    assert run_on_ranks(main, tmp_path / "again", 2, tmp_path) == whole
