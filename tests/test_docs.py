"""The README, the docs and the examples are run, so they stay true."""

import math
import re
import subprocess
import sys
from pathlib import Path

import lightning
import proofs
import pytest
import torch
import toy_trainers
import transformers
from snippets import SNIPPETS, blocks
from surroundings import surroundings
from torch.utils.data import ConcatDataset, DataLoader
from toys import dataset, mlp

import multidds
from multidds import Balancer, Mixture

ROOT = Path(__file__).parent.parent
FOLDERS = {folder: sorted((ROOT / folder).rglob("*.md")) for folder in ("docs", "examples", "experiments")}
PAGES = [*sorted(ROOT.glob("*.md")), *(page for pages in FOLDERS.values() for page in pages)]
RECIPES = sorted(path for folder in ("recipes", "experiments") for path in (ROOT / folder).rglob("*.toml"))
EARLIER = ("LOG.md", "CHANGELOG.md")  # which tell of earlier versions


def before_and_after(diff):
    return ["\n".join(line[1:] for line in diff.splitlines() if line[:1] in (keep, " ", "")) for keep in "-+"]


def test_the_first_block_of_the_readme_runs_as_it_stands_and_prints_what_it_says(capsys):
    code = blocks(ROOT / "README.md", "python")[0]
    exec(code, {})
    said, printed = (
        {name: float(share) for name, share in re.findall(r"(\w+) ([\d.]+)%", text)}
        for text in (code.rpartition("# Mixture")[2], capsys.readouterr().out)
    )
    assert printed == pytest.approx(said, abs=3)
    assert len(printed) == 3


def test_the_loop_of_the_readme_runs_before_and_after_the_diff():
    _, diff = blocks(ROOT / "README.md", "diff")
    for code in before_and_after(diff):
        names = surroundings()
        exec(code, names)
    assert len(names["balancer"].history) > 2
    sizes = names["sizes"]
    assert names["mixture"].probabilities != Mixture.proportional(sizes).probabilities


def test_the_readme_gives_the_two_commands():
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    assert {line.partition("#")[0].strip() for line in lines} >= {"make demo", "make test"}


def name(path):
    return str(path.relative_to(ROOT))


def test_the_pages_are_all_found():
    assert all(FOLDERS.values())
    assert {"recipes/reference.toml", "experiments/demo/catalogues.toml"} <= {name(recipe) for recipe in RECIPES}
    assert {"README.md", "docs/guide.md", "examples/README.md", "experiments/LOG.md"} <= {name(page) for page in PAGES}


@pytest.mark.parametrize("page", [*PAGES, *RECIPES], ids=name)
def test_short_names_are_explained_where_they_stand(page):
    """And the default has one name."""
    text = re.sub(r"\s+", " ", page.read_text(encoding="utf-8"))
    prose = re.sub(r"recipes/ted-\w+-\w+\.toml", "", text)
    if "m2o" in prose and page.name not in EARLIER:
        assert re.search(r"many-to-one \(m2o\)|m2o.{1,10}many-to-one|many-to-one is m2o|into English \(m2o\)", prose)
    if "{many}" in text:
        assert re.search(r"\{many\}( is|:| \(that side)", text)
    if page.name not in EARLIER:
        assert "anchored" not in text.lower()


def test_the_version_is_the_same_wherever_it_stands():
    versions = re.findall(r"(?m)^version: (.+)$", (ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    versions += re.findall(r"(?m)^## (\d\S+)", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"))[:1]
    assert versions == [multidds.__version__] * 2


def trainer_surroundings(folder, steps):
    data = {"train_sets": toy_trainers.train_sets(), "dev_sets": toy_trainers.dev_sets(), "collator": None}
    args = toy_trainers.arguments(folder, max_steps=steps, logging_steps=100)
    model = toy_trainers.Classifier()
    return {"Trainer": transformers.Trainer, "ConcatDataset": ConcatDataset, "model": model, "args": args, **data}


@pytest.mark.slow
def test_the_trainer_of_the_readme_runs_before_and_after_the_diff_and_that_of_the_site(tmp_path):
    diff, _ = blocks(ROOT / "README.md", "diff")
    for code in (*before_and_after(diff), *blocks(ROOT / "docs" / "index.md", "python")):
        names = trainer_surroundings(tmp_path, steps=2000)
        exec(code, names)
        assert names["trainer"].state.global_step == 2000
    assert any("mixture/a" in log for log in names["trainer"].state.log_history)


@pytest.mark.filterwarnings("ignore::lightning.pytorch.utilities.warnings.PossibleUserWarning")  # of tiny trainings
@pytest.mark.filterwarnings("ignore:`isinstance.treespec, LeafSpec")  # Lightning 2.6 with torch 2.13
@pytest.mark.slow
@pytest.mark.parametrize("extra", SNIPPETS)
def test_the_snippet_of_each_extra_runs_as_it_stands(extra, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # trainers write where they are
    SNIPPETS[extra](str(tmp_path), **({"steps": 20} if extra in ("hf", "trl", "st") else {}))


def test_the_blocks_of_the_guide_run():
    names = surroundings()
    for block in blocks(ROOT / "docs" / "guide.md", "python"):
        exec(block, names)
    assert names["update"].skipped is None
    assert sum(names["sampler"].examples.values()) == 32


@pytest.mark.filterwarnings("ignore::lightning.pytorch.utilities.warnings.PossibleUserWarning")  # of tiny trainings
@pytest.mark.filterwarnings("ignore:`isinstance.treespec, LeafSpec")  # Lightning 2.6 with torch 2.13
@pytest.mark.slow
def test_the_blocks_of_the_page_on_dirty_data_run(tmp_path, monkeypatch):
    loop, trainer, lightning_ = blocks(ROOT / "docs" / "dirty-data.md", "python")
    names = surroundings()
    exec(loop, names)
    assert names["scorer"].weights(names["batch"]).std() > 0

    rows = toy_trainers.train_sets()["b"]
    given = trainer_surroundings(tmp_path, steps=30) | {"torch": torch, "train_dataset": rows}
    given |= {"TrainerCallback": transformers.TrainerCallback, "ExampleScorer": names["ExampleScorer"]}
    given["dev_batches"] = {"dev": [torch.utils.data.default_collate(list(rows))]}
    exec(trainer, given)
    assert given["scorer"].state_dict()["steps"] == 30
    assert given["scorer"].weights(given["trainer"].last).std() > 0

    monkeypatch.chdir(tmp_path)  # Lightning writes where it is
    names["LightningModule"] = lightning.LightningModule
    exec(lightning_, names)
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    quiet |= {"enable_checkpointing": False, "accelerator": "cpu"}
    fitted = lightning.Trainer(max_steps=30, **quiet)
    module = names["Module"](mlp(), names["dev_loaders"])
    fitted.fit(module, DataLoader(dataset(40), batch_size=8))
    fitted.save_checkpoint(tmp_path / "half.ckpt")
    again = names["Module"](mlp(), names["dev_loaders"])
    lightning.Trainer(max_steps=60, **quiet).fit(
        again, DataLoader(dataset(40), batch_size=8), ckpt_path=tmp_path / "half.ckpt"
    )
    assert (module.scorer.state_dict()["steps"], again.scorer.state_dict()["steps"]) == (30, 60)


def test_the_worked_example_of_contributing_runs():
    names = surroundings()
    names |= {"Balancer": Balancer, "mixture": Mixture.proportional(names["sizes"])}
    names |= {"train": names["probe_loaders"], "dev": names["dev_loaders"]}
    for block in blocks(ROOT / "CONTRIBUTING.md", "python"):
        exec(block, names)
    update = names["balancer"].update()
    raised = {name: p * math.exp(0.3 * update.rewards[name]) for name, p in update.before.items()}
    assert update.mixture == pytest.approx({name: p / sum(raised.values()) for name, p in raised.items()})
    assert update.mixture != update.before


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_link_to_a_file_leads_somewhere(page):
    folder = ROOT / "docs" if page.name == "results-intro.md" else page.parent  # it becomes docs/results.md
    site = folder.name == "docs"  # where a link to a folder would lead to a page of that name
    for target in re.findall(r"\]\(([^)#]+)", page.read_text(encoding="utf-8")):
        if "://" not in target:
            assert (folder / target).is_file() or ((folder / target).exists() and not site), target


def test_every_file_of_tests_that_the_docs_name_exists():
    for page in PAGES:
        if page.name not in EARLIER:
            for file in re.findall(r"\w*test_\w+\.py", page.read_text(encoding="utf-8")):
                assert list((ROOT / "tests").rglob(file)), f"{page.name}: {file}"


def test_the_command_of_proofs_prints_every_claim():
    command = [sys.executable, proofs.__file__]
    printed = subprocess.run(command, capture_output=True, encoding="utf-8", check=True).stdout
    sentences = [sentence for rows in proofs.claims().values() for sentence in rows]
    assert len(sentences) > 100
    assert all(f"| {sentence} |" in printed for sentence in sentences)


def test_what_works_where_is_proved_by_a_test_of_that_trainer():
    page = (ROOT / "docs" / "integrations.md").read_text(encoding="utf-8")
    (table,) = re.findall(r"(?ms)^## What works where$(.*?)(?=^## |\Z)", page)
    head, _, *rows = [line.strip("| ").split(" | ") for line in table.splitlines() if line.startswith("|")]
    columns = ["Hugging Face Trainer" if name == "Trainer" else name for name in head]
    claims = proofs.claims()
    assert len(rows) > 9
    for feature, *cells in rows:
        for trainer, cell in zip(columns, cells, strict=True):
            proved = any(f"**{feature}**" in sentence for sentence in claims[trainer])
            assert proved == (cell == "yes"), f"{feature} with {trainer}: {cell}"
