"""`ddp_doctor explain` on recorded logs: the blamed ranks, the recognised message; and no log causes a traceback.

logs/README.md is the table of the logs: what is expected of each, and where it comes from.
"""

import io
import json
import random
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from ddp_doctor.__main__ import main
from ddp_doctor.explain import explain_logs, explain_text, log_files, page
from ddp_doctor.explain.log_lines import Log, who
from ddp_doctor.explain.messages import MESSAGES, recognise

smoke = pytest.mark.smoke
FOLDER = Path(__file__).parent / "logs"
ROW = re.compile(r"^\| (\S+) \| ([\d -]+) \| (.+?) \| (.+) \|$", re.MULTILINE)
ROWS = {name: (ranks.split(), message) for name, ranks, message, _ in ROW.findall((FOLDER / "README.md").read_text())}
SPAWN = "torch.multiprocessing.spawn.ProcessExitedException: process 1 terminated with"
ROWS.pop("---|---|---|---", None)


def explained(name):
    return explain_logs(log_files(FOLDER / name))


@smoke
@pytest.mark.parametrize("name", ROWS)
def test_blames_the_expected_ranks(name):
    ranks, message = ROWS[name]
    explanation, facts = explained(name)
    text = page(explanation, facts)
    assert (explanation.message.name if explanation.message else "-") == message, text
    assert [str(rank) for rank in explanation.ranks] == (ranks if ranks != ["-"] else []), text
    assert len(text.splitlines()) <= 22, text
    assert explanation.message is None or text.startswith("VERDICT: ")


@smoke
@pytest.mark.parametrize(
    "prefix", ["> ", "    ", "2026-11-26T12:00:00.123456789Z ", "2026-11-26 12:00:00 ", "Nov 26 12:00:00 ", "stderr: "]
)
@pytest.mark.parametrize("ends", ["\n", "\r\n"])
def test_a_prefix_of_each_line_changes_nothing(prefix, ends):
    for name in ROWS:
        if (FOLDER / name).is_file():
            lines = (FOLDER / name).read_text().split("\n")
            text = ends.join(prefix + line if line else line for line in lines)
            explanation, facts = explain_logs([Log(text)])
            expected, _ = explained(name)
            result = explanation.message, explanation.ranks
            assert result == (expected.message, expected.ranks), (name, page(explanation, facts))


@smoke
def test_every_log_has_a_row_and_holds_no_path_of_this_machine():
    logs = {path.name for path in FOLDER.iterdir()} - {"README.md"}
    assert logs == set(ROWS) and len(logs) >= 40
    for path in FOLDER.rglob("*.log"):
        assert str(Path.home() / "x") not in path.read_text() and str(FOLDER.parents[2]) not in path.read_text()


@smoke
def test_an_explanation_names_the_line_of_the_log_and_a_command(capsys):
    assert main(["explain", str(FOLDER / "raises.log")]) == 1
    text = capsys.readouterr().out
    assert "rank 1 raised ValueError: a label of -1, in /home/me/project/raises.py:12 (line 8 of raises.log)" in text
    assert "rank 0: only lost contact" in text and "ddp_doctor run --nproc 2" in text


@smoke
def test_every_message_is_recognised_in_a_log_of_one_line():
    for message in MESSAGES:
        for text in message.texts:
            explanation, _ = explain_logs([Log(f"RuntimeError: {text}\n")])
            assert explanation.message is not None, (message.name, text)


@smoke
def test_times_of_several_files_decide_which_error_was_first(tmp_path):
    error = (
        "2026-11-26 12:00:0{second} Traceback (most recent call last):\n2026-11-26 12:00:0{second} ValueError: {text}\n"
    )
    (tmp_path / "rank_0.log").write_text(error.format(second=5, text="late"))
    (tmp_path / "rank_1.log").write_text(error.format(second=3, text="early"))
    explanation, _ = explain_logs(log_files(tmp_path))
    assert explanation.ranks == (1,) and "early" in explanation.sentence


@smoke
def test_without_times_two_errors_in_two_files_are_both_named(tmp_path):
    for rank, text in enumerate(("one", "two")):
        (tmp_path / f"rank_{rank}.log").write_text(f"Traceback (most recent call last):\nValueError: {text}\n")
    explanation, facts = explain_logs(log_files(tmp_path))
    assert explanation.ranks == (0, 1) and "came first" in page(explanation, facts)
    explanation, facts = explain_logs([log_files(tmp_path / "rank_0.log")[0], Log(facts.logs[0].text, "rank_1.log")])
    assert explanation.ranks == (0, 1) and "every rank: " in page(explanation, facts)


@smoke
def test_of_the_attempts_in_a_log_dir_the_first_is_read(tmp_path):
    errors = {(0, 0): "RuntimeError: Connection closed by peer", (0, 1): "ValueError: a", (1, 1): "ValueError: b"}
    for (attempt, rank), text in errors.items():
        folder = tmp_path / f"attempt_{attempt}" / str(rank)
        folder.mkdir(parents=True)
        (folder / "stderr.log").write_text(f"Traceback (most recent call last):\n{text}\n")
    explanation, facts = explain_logs(log_files(tmp_path))
    assert explanation.ranks == (1,) and "ValueError: a" in explanation.sentence
    assert "what came of the later attempts" in page(explanation, facts)


@smoke
@pytest.mark.parametrize(
    ("prefixes", "ranks"),
    [
        (("[rank0]: ", "[rank1]: "), [0, 1]),
        (("[default0]:", "[default1]:"), [0, 1]),  # torchrun --tee
        (("[trainer0]:", "[reader0]:"), [0, 0]),  # of two roles
        (("0: ", "1: "), [0, 1]),  # srun --label
        (("[1,0]<stderr>:", "[1,1]<stderr>:"), [0, 1]),  # mpirun --tag-output
        (("(Trainer pid=7, ip=10.0.0.1) ", "(Trainer pid=7, ip=10.0.0.2) "), [None, None]),  # Ray
        (("node-1: ", "2026-11-26T12:00:00.1+01:00 node-2: "), [None, None]),  # pdsh; kubectl logs --timestamps
    ],
)
def test_lines_of_two_processes_may_alternate(prefixes, ranks):
    lines = ["Traceback (most recent call last):", '  File "/home/me/{}.py", line 3, in f', "    f()", "ValueError: {}"]
    text = "\n".join(prefix + line.format(i) for line in lines for i, prefix in enumerate(prefixes))
    _, facts = explain_logs([Log(text)])
    assert [(event.rank, event.text, event.frame) for event in facts.events] == [
        (rank, f"ValueError: {i}", (f"/home/me/{i}.py", 3)) for i, rank in enumerate(ranks)
    ]


@smoke
@pytest.mark.parametrize(
    ("ended", "message", "says"),
    [
        ("srun: error: node1: task 1: Segmentation fault", "crashed", "SIGSEGV"),
        ("srun: error: node1: task 1: Bus error (core dumped)", "loader worker killed", "SIGBUS"),
        ("srun: error: node1: task 1: Aborted (core dumped)", "no error text", "rank 1: -6"),
        (f"{SPAWN} signal SIGKILL", "killed", "SIGKILL"),
        (f"{SPAWN} signal SIGILL", "crashed", "SIGILL"),
        (f"{SPAWN} signal SIGFPE", "crashed", "SIGFPE"),
        (f"{SPAWN} signal SIGABRT", "no error text", "rank 1: -6"),
        (f"{SPAWN} signal SIGTERM", "stopped from outside", "rank 1: -15"),
        (f"{SPAWN} exit code 3", "no error text", "rank 1: 3"),
    ],
)
def test_how_a_process_ended_is_read(ended, message, says):
    explanation, _ = explain_logs([Log(f"Traceback (most recent call last):\n{ended}\n")])
    assert explanation.message.name == message and says in explanation.sentence


@smoke
def test_an_error_of_the_network_counts_unless_a_timeout_was_before_it():
    network, timeout = ((FOLDER / f"nccl_{name}.log").read_text() for name in ("infiniband", "all_wait_alike"))
    assert explain_logs([Log(network + timeout)])[0].message.name == "NCCL: network"
    assert explain_logs([Log(timeout + network)])[0].message.name == "NCCL: timeout"


@smoke
@pytest.mark.parametrize("error", ["ConnectionRefusedError: [Errno 111] Connection refused", "EOFError: x"])
def test_a_connection_error_in_torch_utils_data_is_a_dead_worker(error):
    assert recognise(error, ["/x/torch/utils/data/_utils/pin_memory.py"]).name == "loader worker killed"
    assert recognise(error, ["/x/requests/adapters.py"]) is not recognise(error, ["/x/torch/utils/data/dataloader.py"])


@smoke
def test_many_ranks_are_not_all_listed():
    assert who(range(0, 40, 2)) == "ranks 0, 2, 4, 6, 8, 10 and 14 more"
    lines = [f"[rank{i}]: RuntimeError: Connection closed by peer [10.0.0.{i}]:1\n" for i in range(12)]
    text = explain_text("[rank12]: torch.cuda.OutOfMemoryError: CUDA out of memory.\n" + "".join(lines))
    assert text.startswith("VERDICT: rank 12") and "\n... and 4 more\n" in text and "rank 8" not in text


@smoke
def test_a_rank_whose_log_has_no_error_is_the_one_that_left():
    lost = Log("RuntimeError: Connection closed by peer\n", "rank_0.log")
    assert explain_logs([lost, Log("done\n", "rank_1.log")])[0].ranks == (1,)


@smoke
def test_a_signal_counts_only_if_nothing_went_wrong_before_it():
    signal = "W1126 12:00:09.1 99 torch/agent/server/api.py:723] Received 15 death signal, shutting down workers\n"
    wait = (FOLDER / "nccl_never_worked_ray.log").read_text()
    assert explain_logs([Log(wait + signal)])[0].message.name == "NCCL: timeout"
    lost = (FOLDER / "leaves_with_0.log").read_text()
    assert explain_logs([Log(signal + lost)])[0].message.name == "stopped from outside"


@smoke
def test_a_pipe_a_folder_json_and_exit_codes(tmp_path, capsys, monkeypatch):
    findings = tmp_path / "findings.json"
    (tmp_path / "empty").mkdir()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO((FOLDER / "killed.log").read_bytes())))
    assert main(["explain", "--json", str(findings), "-"]) == 1
    assert json.loads(findings.read_text())["ranks"] == [1]
    assert main(["explain", str(FOLDER / "raises_log_dir")]) == 1
    assert "attempt_0/1/stderr.log" in capsys.readouterr().out
    assert main(["explain", str(FOLDER / "healthy.log"), str(FOLDER / "healthy_tee.log")]) == 0
    assert "No failure was found" in capsys.readouterr().out
    assert main(["explain", str(tmp_path / "absent.log")]) == 2
    assert (
        capsys.readouterr().err
        == f"error: the log '{tmp_path / 'absent.log'}' cannot be read: No such file or directory.\n"
    )
    assert main(["explain", str(tmp_path / "empty")]) == 2
    assert capsys.readouterr().err == f"error: the folder '{tmp_path / 'empty'}' holds no log.\n"


@smoke
def test_a_traceback_in_a_line_of_json_is_read():
    text = (
        r'{"level": "error", "rank": 1, "msg": "Traceback (most recent call last):\n  File \"train.py\", line 3, in f\n'
    )
    text += r'    g()\nValueError: a label of -1"}'
    explanation, _ = explain_logs([Log(text)])
    assert explanation.message.name == "exception" and "a label of -1" in explanation.sentence


@smoke
def test_no_log_causes_a_traceback():
    draw = random.Random(0)
    for path in sorted(FOLDER.rglob("*.log")):
        data = path.read_bytes()
        for _ in range(3):
            start, end = sorted(draw.randrange(len(data) + 1) for _ in range(2))
            assert explain_text(data[start:end].decode(errors="replace"))
        noise = bytearray(data)
        for _ in range(len(noise) // 20):
            noise[draw.randrange(len(noise))] = draw.randrange(256)
        assert explain_text(noise.decode(errors="replace"))
        lines = data.splitlines()
        draw.shuffle(lines)
        assert explain_text(b"\n".join(lines).decode(errors="replace"))
    texts = "", "\n", "\0" * 100, "\x1b[31m", "Traceback (most recent call last):", "[rank0]:" * 1000, "0: " * 9999
    assert all(map(explain_text, texts))


def test_long_logs_and_long_lines_are_read_in_time():
    line = "step 1200 loss 2.417 error 0.013 lr 0.0003 [rank0]: tokens/s 183,201 Timed out: 0 retries\n"
    text = line * (50_000_000 // len(line)) + (FOLDER / "raises.log").read_text()
    text += "x" * 1_000_000 + " Watchdog caught collective operation timeout\n" + "[rank0]: " * 100_000
    start = time.process_time()
    explanation, _ = explain_logs([Log(text)])
    assert explanation.ranks == (1,)
    assert time.process_time() - start < 300, "a log of 50 MB takes about 15 s, whatever stands in it"


@smoke
def test_it_imports_nothing_but_the_standard_library():
    code = "import sys, ddp_doctor.explain; print(sorted({name.partition('.')[0] for name in sys.modules}))"
    names = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert not {"torch", "numpy", "psutil"} & set(re.findall(r"\w+", names))
