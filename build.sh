#!/usr/bin/env bash
# Every task of the project, from a bare clone on: ./build.sh [COMMAND] [--port N] [--with-numpy]
#
#   serve     (default) build everything, the demo models included, and serve the site on 127.0.0.1:8000
#   test      every check and test, in the browser too; with options and files of pytest, those tests alone
#   check     every check: formats, types, lint
#   format    format Python, TypeScript and C
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

PYODIDE_BUILD_TIMEOUT=60

. scripts/environment.sh

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
  make --silent --no-print-directory -C wasm_kernels PYTHON="$(find_python || echo python3)" >&2
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

run_checks() {
  need_clang_format
  check .venv/bin/ruff check .
  check .venv/bin/ruff format --check .
  check .venv/bin/mypy
  check clang-format-19 --dry-run -Werror wasm_kernels/*.[ch]
  (
    cd web
    check npx tsc --noEmit
    check npx eslint .
    check npx prettier --check --log-level warn .
  )
}

run_format() {
  need_clang_format
  .venv/bin/ruff check --fix .
  .venv/bin/ruff format .
  clang-format-19 -i wasm_kernels/*.[ch]
  (cd web && npx prettier --write --log-level warn .)
}

run_tests() {
  need_chromium
  check $PYTHON -m pytest "$@"
}

run_bench() {
  need wat2wasm wabt "wabt, from your system's packages"
  need_chromium
  $PYTHON -m tests.bench "$@"
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
    [ $# -gt 1 ] || die "--port needs a number"
    port=$2
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

case $command in
test | bench) ;;
*) [ ${#rest[@]} = 0 ] || die "$command takes no '${rest[0]}'; ./build.sh --help lists what there is" ;;
esac

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
  [ ${#rest[@]} -gt 0 ] || run_checks
  run_tests ${rest[@]+"${rest[@]}"}
  ;;
check)
  environments
  build_kernels
  run_checks
  ;;
format)
  environments
  run_format
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
