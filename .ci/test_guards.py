"""Each call that Windows lacks or answers differently, planted in turn: ruff, mypy or house_rules.py finds it."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
HEAD = """\
import asyncio, faulthandler, gzip, logging, mmap, multiprocessing, os, select, signal, socket, socketserver
import subprocess, time
from pathlib import Path
class Owner:
    path: Path
    loop: asyncio.AbstractEventLoop
def planted(path: Path, owner: Owner) -> None:
    {}
"""

# By ruff, in tests and scripts too: never.
NEVER = [
    "open('x')", "path.open()", "path.read_text()", "path.write_text('x')", "os.fork()", "os.rename('a', 'b')",
    "os.symlink('a', 'b')", "os.uname()", "signal.SIGALRM", "signal.SIGKILL", "socket.AF_UNIX", "socket.SO_REUSEPORT",
    "asyncio.start_unix_server(print)", "time.monotonic()", "multiprocessing.Process()", "multiprocessing.Pool()",
    "from concurrent.futures import ProcessPoolExecutor", "from tempfile import NamedTemporaryFile",
    "'/dev/shm/x'", "'/tmp/x'", "'/var/tmp/x'",
    *(f"import {name}" for name in (
        "crypt", "curses", "fcntl", "grp", "posix", "pty", "pwd", "readline", "resource", "syslog", "termios", "tty",
        "uvloop",
    )),
]  # fmt: skip

# By mypy as on Windows, which looks past `if sys.platform != "win32":`.
GUARDED = [
    "os.forkpty()", "os.getuid()", "os.geteuid()", "os.setsid()", "os.killpg(1, 2)", "os.getpgid(1)", "os.nice(1)",
    "os.getloadavg()", "os.sched_getaffinity(0)", "os.mkfifo('x')", "os.statvfs('x')", "os.sysconf('x')",
    "os.pread(1, 2, 3)", "os.sendfile(1, 2, 3, 4)", "os.pipe2(1)", "os.wait()", "os.WNOHANG", "os.O_NONBLOCK",
    "os.O_CLOEXEC", "signal.SIGHUP", "signal.SIGUSR1", "signal.SIGCHLD", "signal.SIGPIPE", "signal.SIGSTOP",
    "signal.alarm(1)", "signal.setitimer(1, 2)", "signal.pause()", "signal.pthread_sigmask(1, {1})",
    "signal.sigwait([1])", "select.epoll()", "select.poll()", "socket.MSG_DONTWAIT", "socketserver.UnixStreamServer",
    "asyncio.open_unix_connection('x')", "time.clock_gettime(1)",
    "time.tzset()", "mmap.PROT_READ", "faulthandler.register(1)",
]  # fmt: skip

# By house_rules.py, in the packages' sources: what is no name.
WORDS = [
    "owner.loop.add_signal_handler(1, print)", "owner.loop.add_reader(1, print)", "owner.loop.add_writer(1, print)",
    "owner.loop.create_unix_server(print)", "owner.loop.create_unix_connection(print)",
    "from os import getpid, kill", "import os as system", "end = os.kill", "subprocess.getoutput('x')",
    "multiprocessing.get_context('fork')", "multiprocessing.get_context('forkserver')",
    'multiprocessing.set_start_method("fork")', "os.kill(1, 0)", "subprocess.Popen('x', preexec_fn=print)",
    "subprocess.Popen('x', start_new_session=True)", "subprocess.Popen('x', pass_fds=(1,))",
    "subprocess.run(['x'], text=True)", "subprocess.run(['x'], universal_newlines=True)",
    "subprocess.run('x', shell=True)", "os.system('x')", "'/dev/shm'", "'/dev/null'", "'/proc/self/maps'", "'/tmp'",
    "'/etc/hosts'", "'/bin/sh'", "'/usr/bin/env'", "os.environ['HOME']", "path.rename('x')", "path.symlink_to('x')",
    "mmap.mmap(-1, 1)", "numpy.memmap('x')", "numpy.load('x', mmap_mode='r')", "safetensors.safe_open('x', 'pt')",
    "time.time()", "time.strftime('%-d')", "os.EX_OK", "'ipc://x'", "'libc.so'", "owner.path.read_text()",
    "owner.path.write_text('x')", "owner.path.open()", "owner.path.open('a')",
    "gzip.open('x', 'rt')", "os.fdopen(1)", "os.fdopen(1, 'w')", "logging.FileHandler('x')",
]  # fmt: skip

# None of the three has anything against these.
ALLOWED = [
    "open('x', encoding='utf-8')", "path.read_text(encoding='utf-8')", "path.write_text('x', 'utf-8')",
    "path.open('rb')", "owner.path.open('w', encoding='utf-8')", "os.replace('a', 'b')", "int(time.time())",
    "time.perf_counter()", "signal.SIGINT", "signal.SIGTERM", "multiprocessing.get_context('spawn')", "Path.home()",
    "gzip.open('a.gz')", "gzip.open('a', 'rt', encoding='utf-8')", "os.fdopen(1, 'wb')",
    "os.fdopen(1, encoding='utf-8')", "logging.FileHandler('x', encoding='utf-8')", "'/v1/models'",
    "subprocess.run(['x'], encoding='utf-8')", "'%-10s'", "'{%-if x %}'",
]  # fmt: skip


def ruff(statement: str) -> str:
    """What ruff says of a source file with `statement`, about Windows alone."""
    command = ["ruff", "check", "--output-format", "concise", "--select", "PLW1514,S108,TID251"]
    command += ["--config", str(ROOT / "pyproject.toml"), "--stdin-filename", "packages/wllm/src/wllm/planted.py", "-"]
    done = subprocess.run(command, input=HEAD.format(statement), capture_output=True, encoding="utf-8", cwd=ROOT)
    assert done.returncode in (0, 1), done.stderr
    return done.stdout if done.returncode else ""


def house_rules(folder: Path, statement: str) -> str:
    """What house_rules.py says of a repository in `folder` that has one package, with `statement` in its source."""
    source = folder / "packages" / "one" / "src" / "one"
    source.mkdir(parents=True)
    (source.parents[1] / "pyproject.toml").write_text('[project]\nname = "one"\ndependencies = []\n', encoding="utf-8")
    (source / "planted.py").write_text(HEAD.format(statement), encoding="utf-8")
    (folder / ".ci").mkdir()
    script = shutil.copy(ROOT / ".ci" / "house_rules.py", folder / ".ci")
    done = subprocess.run([sys.executable, script], capture_output=True, encoding="utf-8")
    assert not done.stderr
    return done.stdout if done.returncode else ""


def mypy(folder: Path, statements: list[str]) -> set[str]:
    """Those of the statements in which mypy finds what Windows lacks; a run each would take minutes."""
    for number, statement in enumerate(statements):
        (folder / f"planted_{number}.py").write_text(HEAD.format(statement), encoding="utf-8")
    files = [f"planted_{number}.py" for number in range(len(statements))]
    command = [sys.executable, "-m", "mypy", "--platform", "win32", "--config-file=", *files]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", cwd=folder)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    found = re.findall(r"^planted_(\d+)\.py:\d+: error: .*\[attr-defined\]$", done.stdout, re.MULTILINE)
    return {statements[int(number)] for number in found}


@pytest.mark.parametrize("statement", NEVER)
def test_ruff_finds(statement: str) -> None:
    assert "planted.py:8:" in ruff(statement)


@pytest.mark.parametrize("statement", WORDS)
def test_the_house_rules_find(statement: str, tmp_path: Path) -> None:
    assert "packages/one/src/one/planted.py:8: " in house_rules(tmp_path, statement)


def test_mypy_finds_what_no_look_at_the_platform_guards(tmp_path: Path) -> None:
    guarded = [f"import sys\n    if sys.platform != 'win32':\n        {statement}" for statement in GUARDED]
    assert mypy(tmp_path, [*GUARDED, *guarded, *ALLOWED]) == set(GUARDED)


@pytest.mark.parametrize("statement", ALLOWED)
def test_what_works_on_windows_is_left_alone(statement: str, tmp_path: Path) -> None:
    assert ruff(statement) == house_rules(tmp_path, statement) == ""


def test_a_marker_for_one_name_of_the_processor(tmp_path: Path) -> None:
    assert house_rules(tmp_path, "pass") == ""
    project = tmp_path / "packages" / "one" / "pyproject.toml"
    marker = "dependencies = [\"two; platform_machine == 'x86_64'\"]"
    project.write_text(f'[project]\nname = "one"\n{marker}\n', encoding="utf-8")
    script = tmp_path / ".ci" / "house_rules.py"
    done = subprocess.run([sys.executable, script], capture_output=True, encoding="utf-8")
    assert done.returncode == 1 and "pyproject.toml:3: on Windows this processor is called AMD64" in done.stdout
