"""Run folders written by hand, for reports: as many datasets, methods and seeds as a test wants, in no time.

nmt/report/test_report.py holds their lines against those of a real run, so that they cannot drift apart.
"""

import json
import math
import random

from multidds._base.chain import Chain
from multidds._base.escaping import file_name
from multidds.nmt import report as application
from multidds.nmt.common.checksummed import sha256, write_checksummed
from multidds.report import report as written_report

RELATED = [f"{language}-eng" for language in ("aze", "bel", "glg", "slk", "tur", "rus", "por", "ces")]
DIVERSE = [f"eng-{language}" for language in ("bos", "mar", "hin", "mkd", "ell", "bul", "fra", "kor")]
WORDS = ("the", "cat", "sat", "on", "a", "mat", "and", "saw", "that", "it", "was", "good", "for", "every", "dog", "not")


def report(folders, out):
    """The report that the command writes."""
    return written_report(folders, out, application=application)


def make_run(
    folder, names, setting="s", seed=1, updates=12, quality=0.5, scored=True, finished="60 steps", train=None, **mixture
):
    """A run of `mixture` settings on the pairs `names`; `quality` is the share of words that it translates right."""
    rng = random.Random(f"{setting} {seed} {sorted(mixture.items())} {len(names)}")
    config = {
        "data": {
            "folder": "data/x",
            "setting": setting,
            "pairs": [pair(name) for name in names],
            "train": "t.{lang}",
            "dev": "d.{lang}",
            "test": "e.{lang}",
        },
        "train": {"seed": seed, **(train or {})},
        "mixture": {"method": "static", **mixture},
    }
    sizes = {name: 200 + 137 * i * i for i, name in enumerate(names)}
    pairs = {
        name: {
            "train": {"pairs": sizes[name], "dropped": {"too long": 3}, "target tokens": 9 * sizes[name]},
            "dev": {"pairs": 100, "dropped": {}},
            "test": {"pairs": 40, "dropped": {}},
        }
        for name in names
    }
    identity = f"made by hand, seed {seed}, {setting}"
    facts = {"run": identity, "config": config, "data": f"fingerprint of {setting}", "direction": "many-to-one"}
    facts["pairs"] = pairs
    folder.mkdir(parents=True)
    write_checksummed(folder / "config.json", facts)
    shares = {name: size / sum(sizes.values()) for name, size in sizes.items()}
    records = [{"kind": "start", "step": 0, "run": identity}]
    moments = [{"step": 0, "run": identity, "mixture": dict(shares)}]
    learned = mixture.get("method", "static") != "static"
    lowest = math.inf
    clock = {"data": 0.0, "steps": 0.0, "updates": 0.0, "validation": 0.0, "saving": 0.0, "rest": 0.0}
    for i in range(1, updates + 1):
        step = 10 * i
        clock["steps"] += 2.0 + rng.random()
        clock["data"] += 0.03
        clock["saving"] += 0.02
        clock["rest"] += 0.01
        records.append(
            {"kind": "step", "step": step, "loss": 5 / i, "lr": 1e-3, "tokens": 900 * step, "tokens_per_second": 900.0}
        )
        if learned:
            clock["updates"] += 0.2
            shares = {name: share * math.exp(rng.gauss(0.05, 0.1)) for name, share in shares.items()}
            shares = {name: share / sum(shares.values()) for name, share in shares.items()}
            moments.append(
                {
                    "step": step,
                    "mixture": dict(shares),
                    "reward": {name: rng.gauss(0.2, 0.05) for name in names},
                    "train_loss": dict.fromkeys(names, 5 / i),
                    "dev_loss": dict.fromkeys(names, 5 / i),
                    "dev_weight": dict.fromkeys(names, 1 / len(names)),
                    "passes": dict.fromkeys(names, step / 10),
                    "drift": 0.1,
                    "learned": 0.08,
                    "unlearned": 0.02,
                    "relevance": {dev: {name: [rng.uniform(-0.2, 0.6), None] for name in names} for dev in names},
                }
            )
        if i % 3 == 0:
            clock["validation"] += 0.5
            losses = {name: 5 / i + 0.1 * j + rng.random() / 10 for j, name in enumerate(names)}
            measured = {"dev_loss": losses, **measures(losses)}
            means = {kind: sum(values.values()) / len(values) for kind, values in measured.items()}
            records.append(
                {
                    "kind": "validation",
                    "step": step,
                    "epoch": i // 3,
                    **measured,
                    "perplexity": {name: math.exp(loss) for name, loss in losses.items()},
                    "mean": means["dev_loss"],
                    "means": means,
                    "best": means["dev_loss"] < lowest,
                    "passes": {name: step * shares[name] for name in names},
                    "mixture": dict(shares),
                    "sentences": 30 * step,
                    "tokens": 900 * step,
                    "finished": finished if i == updates else "",
                    "seconds": 0.5,
                    "clock": dict(clock),
                }
            )
            moments.append({"step": step, "eval_loss": losses, "finished": finished if i == updates else ""})
            lowest = min(lowest, means["dev_loss"])
    write_records(folder, records)
    write_mixture(folder, moments)
    if scored:
        score(folder, names, setting, rng, quality)
    return folder


def paper_runs(folder):
    """The paper's experiments on two of its settings, written by hand; and a hundred datasets."""
    step_ahead = {"method": "multidds", "step_ahead": 0.001}
    for setting, names in (("m2o-related", RELATED), ("o2m-diverse", DIVERSE)):
        made = folder / setting
        make_run(made / "uniform", names, setting, prior="uniform", quality=0.5)
        make_run(made / "temperature", names, setting, prior="temperature", quality=0.52)
        make_run(made / "proportional", names, setting, quality=0.55)
        for seed in (1, 2) if setting == "o2m-diverse" else (1,):
            make_run(made / "multidds" / f"seed-{seed}", names, setting, seed=seed, quality=0.6, **step_ahead)
            make_run(made / "multidds-s" / f"seed-{seed}", names, setting, seed=seed, method="multidds-s", quality=0.66)
    for priority in ("low", "high"):
        make_run(folder / "o2m-diverse" / priority, DIVERSE, "o2m-diverse", method="multidds-s", priority=priority,
                 switch_epoch=10)  # fmt: skip
    make_run(folder / "m2o-related" / "moving-average", RELATED, "m2o-related", method="moving-average", quality=0.58)
    return folder


def measures(losses):
    """What else a validation records, made up from the losses."""
    right = {name: math.exp(-loss) for name, loss in losses.items()}
    return {"accuracy": right, "expected_accuracy": right, "soft_bleu": {name: p * p for name, p in right.items()}}


def score(folder, names, setting, rng, quality):
    """Real texts and their real scores. The references of a setting are the same for all its runs."""
    from sacrebleu.metrics.bleu import BLEU
    from sacrebleu.metrics.chrf import CHRF

    pairs, signatures = {}, {}
    for place in ("hypotheses", "references"):
        (folder / place).mkdir()
    for name in names:
        fixed = random.Random(f"{setting} {name}")
        references = [" ".join(fixed.choices(WORDS, k=fixed.randint(4, 12))) for _ in range(40)]
        hypotheses = [
            " ".join(word if rng.random() < quality else rng.choice(WORDS) for word in line.split())
            for line in references
        ]
        for place, lines in (("hypotheses", hypotheses), ("references", references)):
            (folder / place / f"{file_name(name)}.txt").write_text("".join(line + "\n" for line in lines))
        pairs[name] = {"sentences": len(references)}
        for key, metric in (("bleu", BLEU()), ("chrf", CHRF())):
            pairs[name][key] = metric.corpus_score(hypotheses, [references]).score
            signatures[key] = str(metric.get_signature())
    average = {key: sum(scores[key] for scores in pairs.values()) / len(pairs) for key in ("bleu", "chrf")}
    scores = {
        "run": read_checksummed_json(folder / "config.json")["run"],
        "pairs": pairs,
        "average": average,
        "signatures": signatures,
        "model": {},
        "settings": {},
        "data": "",
        "seed": 1,
    }
    write_scores(folder, scores)


def write_scores(folder, scores):
    """scores.json for the texts that are there now."""
    texts = [*folder.glob("hypotheses/*"), *folder.glob("references/*")]
    write_checksummed(
        folder / "scores.json", {**scores, "files": {f"{p.parent.name}/{p.name}": sha256(p) for p in texts}}
    )


def read_checksummed_json(path):
    return {key: value for key, value in json.loads(path.read_text(encoding="utf-8")).items() if key != "checksum"}


def lines_of(records):
    """Records as the lines of a file."""
    chain = Chain()
    return "".join(chain.written(json.dumps(record)) for record in records)


def write_records(run, records):
    (run / "records.jsonl").write_text(lines_of(records))


def write_mixture(run, moments):
    (run / "mixture.jsonl").write_text(lines_of(moments))


def read_lines(run, name="records.jsonl"):
    """The lines of a file of a run as plain dicts, without their checksums."""
    lines = (run / name).read_text(encoding="utf-8").splitlines()
    return [{key: value for key, value in json.loads(line).items() if key != "checksum"} for line in lines]


def updates_of(run):
    """The updates of a run as plain dicts, without its start and its validations."""
    return [line for line in read_lines(run, "mixture.jsonl") if line["step"] and "mixture" in line]


def pair(name):
    source, _, target = name.partition("-")
    return {"source": source, "target": target}


def some_record(kind, step, **facts):
    """A whole record in which only what a test is about has meaning."""
    rest = {
        "start": {},
        "step": {"loss": 5.0, "lr": 1e-3, "tokens": 0, "tokens_per_second": 0.0},
        "validation": {
            "epoch": 1,
            "dev_loss": {},
            "perplexity": {},
            "accuracy": {},
            "expected_accuracy": {},
            "soft_bleu": {},
            "mean": 4.0,
            "means": {},
            "best": True,
            "passes": {},
            "mixture": {},
            "sentences": 0,
            "tokens": 0,
            "finished": "",
            "seconds": 0.0,
            "clock": {},
        },
        "examples": {"edges": [1.0], "histogram": {}, "weight": {}, "highest": [], "lowest": [], "skipped": None},
    }[kind]
    return {"kind": kind, "step": step, **rest, **facts}


def flipped(path, place, change=1):
    """Changes one byte of a file."""
    content = bytearray(path.read_bytes())
    content[place % len(content)] ^= change
    path.unlink()  # it may be a link
    path.write_bytes(content)
