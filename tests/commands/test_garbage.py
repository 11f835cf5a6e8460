"""Files of histories that nobody wrote: each command ends well or with one line, and no share that is none is printed.

MULTIDDS_FUZZ_CASES=1000 makes a thousand files; by default there are 60.
"""

import csv
import io
import json
import os
import random

import pytest
from damaged_states import damaged
from updates import updates

from multidds._base.errors import UserError
from multidds.commands.cli import explained, run
from multidds.history import save_history
from multidds.nmt.commands import cli  # its commands are beside those of the library

CASES = int(os.environ.get("MULTIDDS_FUZZ_CASES", "60"))
FACTS = {"signal": 0.5, "drift": 0.1, "learned": 0.1, "unlearned": 0.0}
FACTS |= {"relevance": {"x": dict.fromkeys("abc", (0.5, 0.1))}, "worth": {"a": (0.5, 0.1)}}


def lines(folder):
    save_history(updates(**FACTS), folder, start=dict.fromkeys("abc", 1 / 3), passes=dict.fromkeys("abc", 2.0))
    return [json.loads(line) for line in (folder / "mixture.jsonl").read_text().splitlines()]


def logged(entries):
    return [{"step": u.step, "eval_x_loss": 2.0, **u.scalars()} for u in entries]


def as_csv(rows):
    file = io.StringIO()
    csv.writer(file).writerows(rows)
    return file.getvalue()


def garbage(folder, rng):
    """Writes a history with one damage, or another file in its place."""
    kind = rng.choice(["lines", "lines", "lines", "state", "csv", "records"])
    name = {"lines": "mixture.jsonl", "state": "trainer_state.json", "csv": "metrics.csv", "records": "records.jsonl"}
    path, whole = folder / name[kind], lines(folder)
    (folder / "mixture.jsonl").unlink()
    if kind in ("lines", "records"):
        made = damaged(whole, rng)[0]
        text = "\n".join(map(json.dumps, made if isinstance(made, list) else [made])) + "\n"
    elif kind == "state":
        text = json.dumps(damaged({"log_history": logged(updates(**FACTS)), "global_step": 50}, rng)[0])
    else:
        rows = logged(updates(**FACTS))
        made = damaged([list(rows[0]), *(list(map(str, row.values())) for row in rows)], rng)[0]
        text = as_csv(row if isinstance(row, list) else [row] for row in (made if isinstance(made, list) else [made]))
    content = text.encode(rng.choice(["utf-8"] * 9 + ["utf-16"]))
    cut = rng.randrange(len(content) + 1)
    odd = [
        content[:cut],
        content[:cut] + rng.randbytes(5) + content[cut:],
        b"[" * 5000 + b"\n",
        b"",
        rng.randbytes(300),
    ]
    odd += [content + b"x" * 200_000 + b"\n", content.replace(b"10", b"1.0"), content.replace(b"0.", b"1e400", 3)]
    path.write_bytes(rng.choice([content, content, *odd]))


@pytest.mark.claim(
    "Mixtures for other trainers", "files of histories that nobody wrote end in one line, not in a traceback"
)
@pytest.mark.parametrize("part", range(4))
def test_a_file_that_nobody_wrote_is_of_use_or_one_line(part, tmp_path, capsys):
    assert cli
    rng, refused = random.Random(part), 0
    for number in range(CASES // 4):
        folder = tmp_path / f"run-{number}"
        folder.mkdir()
        garbage(folder, rng)
        commands = [["mixture"], ["mixture", "--average"], ["mixture", "--history"], ["mixture", "--at", "20"]]
        for command in [*commands, ["verify"], ["report", "-o", str(tmp_path / "report")]]:
            try:
                run([command[0], str(folder), *command[1:]])
            except (Exception, SystemExit) as error:
                refused += 1
                if not isinstance(error, SystemExit) or error.code not in (0, 1):
                    line_and_code = explained(error)
                    assert line_and_code is not None, (folder, command)
                    assert "\n" not in line_and_code[0]
                    assert str(folder) in line_and_code[0] or command[0] == "report", line_and_code
            printed = capsys.readouterr().out
            if command == ["mixture"]:
                shares = json.loads(printed or '{"a": 1}', parse_constant=lambda constant: pytest.fail(constant))
                assert sum(shares.values()) == pytest.approx(1, abs=1e-2)
                assert all(0 <= share <= 1 for share in shares.values())
    assert refused


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("metrics.csv", "step,mixture/a,mixture/b\n1.5,0.5,0.5\n", "metrics.csv: row 1.*1.5"),
        ("metrics.csv", "step,mixture/a,mixture/b\n1,0.5,0.5,7\n", "metrics.csv: row 1.*7"),
        ("metrics.csv", f"step,mixture/a,mixture/b\n1,{'x' * 200_000},0.5\n", "metrics.csv"),
        ("metrics.csv", "step,mixture/a,mixture/b\n1,half,0.5\n", "metrics.csv.*half"),
        ("mixture.jsonl", '{"step": 1, "mixture": {"a": NaN, "b": 1.0}}\n', "mixture.jsonl:1"),
        ("mixture.jsonl", '{"step": 1, "mixture": {"a": "0.5", "b": []}}\n', "mixture.jsonl:1"),
        ("mixture.jsonl", '{"step": Infinity, "mixture": {"a": 0.5, "b": 0.5}}\n', "mixture.jsonl:1"),
    ],
)
def test_a_history_with_one_fault_is_named_with_its_place(name, content, message, tmp_path):
    (tmp_path / name).write_text(content)
    with pytest.raises(UserError, match=message):
        run(["mixture", str(tmp_path)])


@pytest.mark.parametrize("name", ["mixture.jsonl", "metrics.csv", "trainer_state.json"])
def test_a_history_in_utf_16_is_named(name, tmp_path):
    (tmp_path / name).write_bytes('{"step": 1}\n{"step": 2}\n'.encode("utf-16"))
    with pytest.raises(UserError, match=name):
        run(["mixture", str(tmp_path)])


def test_a_step_of_a_csv_may_be_a_fraction_that_is_whole(tmp_path, capsys):
    (tmp_path / "metrics.csv").write_text("step,mixture/a,mixture/b\n1.0,0.5,0.5\n2.0,0.75,0.25\n")
    run(["mixture", str(tmp_path), "--history"])
    assert json.loads(capsys.readouterr().out) == [[1, {"a": 0.5, "b": 0.5}], [2, {"a": 0.75, "b": 0.25}]]


def test_the_average_of_one_moment_is_that_moment(tmp_path, capsys):
    update = updates(count=1)[0]
    save_history([update], tmp_path)
    run(["mixture", str(tmp_path), "--average"])
    assert json.loads(capsys.readouterr().out) == update.mixture
