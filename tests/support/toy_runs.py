"""A translation run small enough for a test, on the made-up languages."""

from conftest import ROOT

from multidds.nmt.config.config import load_config
from multidds.nmt.prepare.prepare import prepare

SMALL = (
    "model.encoder_layers=1", "model.decoder_layers=1", "model.width=16", "model.inner=32", "model.heads=2",
    "train.tokens=400", "train.batch_tokens=200", "train.pool=4", "train.warmup=5", "train.log_every=3",
    "train.save_every=4", "train.max_steps=12", "mixture.every=5", "mixture.probe_tokens=100", "mixture.sketch=256",
)  # fmt: skip


class Silent:
    """A display that keeps what it is told."""

    def __init__(self):
        self.lines = []

    def progress(self, fraction, facts):
        pass

    def line(self, text):
        self.lines.append(text)

    log = line


def small_config(corpus, monkeypatch, *overrides, pairs=None):
    """recipes/tiny.toml, smaller; prepared. Relative paths lead into the corpus."""
    monkeypatch.chdir(corpus)
    extra = []
    if pairs:
        folder = "data/made-up/" + "+".join(pairs)
        extra = ["data.pairs=[" + ", ".join(f'"{pair}"' for pair in pairs) + "]", f"data.folder={folder}"]
    config = load_config(ROOT / "recipes" / "tiny.toml", [*SMALL, *extra, *overrides])
    prepare(config, processes=2)
    return config
