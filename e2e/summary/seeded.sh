#!/usr/bin/env bash
# seeded.sh PROGRAM [ARGUMENTS]: for `go test -exec`. Runs a package's test program in the package's folder; one that draws examples (DRAWN has its folder) begins
# with those of SEED.
grep -qxF "$(pwd -P)" <<<"$DRAWN" && set -- "$@" "-rapid.seed=$SEED"
exec "$@"
