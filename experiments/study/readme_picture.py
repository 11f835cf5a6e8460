"""README's picture: the mixture of examples/language_model.py, drawn by `multidds.plot` for light and dark pages.

    python experiments/study/readme_picture.py           # from mixture.jsonl
    python experiments/study/readme_picture.py --train   # trains the run first: seconds

Two thirds of the text are tables that no dev set asks for. The first column is the mixture by size. The area shows the
draws of the default, first by a plan and then by what gradients say.
"""

import argparse
import io
import re
import sys
from pathlib import Path

import matplotlib as mpl

from multidds import plot
from multidds.history import save_history

ROOT = Path(__file__).resolve().parents[2]
HISTORY = Path(__file__).with_name("mixture.jsonl")
INKS = {"light": "#1f2328", "dark": "#e6edf3"}  # of GitHub's pages
FONTS = "font-family: -apple-system, 'Segoe UI', 'Noto Sans', Helvetica, Arial, sans-serif"


def train(steps: int = 240, seed: int = 0) -> None:
    """The learned run of the example; its history becomes the file."""
    sys.path.append(str(ROOT / "examples"))
    import language_model
    import torch

    torch.set_num_threads(1)
    data = {name: language_model.examples(name) for name in language_model.SIZES}
    run = language_model.Run(data, "learned", steps, seed)
    run.train(steps)
    HISTORY.unlink(missing_ok=True)
    save_history(run.balancer, HISTORY, passes=run.sampler.passes)


def picture(ink: str) -> str:
    figure = plot(HISTORY, ink=ink, panels=[])
    figure.set_size_inches(7.4, 2.9)
    shares, prior = figure.axes
    prior.set_xticks([0], ["by size"])
    shares.set_title("Share of each dataset in the draws, while the model trains", loc="left", fontsize=10)
    file = io.StringIO()
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "multidds"}):  # text as text, in the reader's font
        figure.savefig(file, format="svg", metadata={"Date": None, "Creator": None})
    text = re.sub(r"(?s)<metadata>.*?</metadata>\s*", "", file.getvalue())
    text = re.sub(r"font-family: [^;\"]*", FONTS, text)
    return re.sub(r"[ \t]+\n", "\n", text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train", action="store_true", help="train the run again")
    parser.add_argument("--folder", type=Path, default=ROOT / "docs", help="where the pictures go")
    given = parser.parse_args()
    if given.train:
        train()
    for kind, ink in INKS.items():
        path = given.folder / f"mixture-{kind}.svg"
        path.write_text(picture(ink), encoding="utf-8")
        print(f"{path}: {path.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
