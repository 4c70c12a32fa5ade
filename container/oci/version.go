package oci

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"weir.dev/weir/container"
	"weir.dev/weir/container/kernel"
	"weir.dev/weir/portkind"
)

// ErrVulnerable says that the runtime's program has a known way out of containers.
var ErrVulnerable = errors.New("known container escapes")

const versionTimeout = 10 * time.Second

const remedy = "install it (apt-get install runc), or have --runtime name another program, or a runtime that `weir check` lists"

// About tells whether the runtime's program is there and may be used.
func About(ctx context.Context, o Options) container.About {
	a := container.About{Name: Name, Ports: []portkind.Kind{portkind.Veth}, Userns: true}
	name := cmp.Or(o.CLI, defaultCLI)
	cli, err := exec.LookPath(name)
	if err != nil {
		a.Missing = fmt.Sprintf("no program %s: %s", name, remedy)
		return a
	}
	a.Version, a.Note, err = checkVersion(ctx, cli)
	switch {
	case errors.Is(err, ErrVulnerable) && o.Vulnerable:
		a.Note = err.Error()
	case err != nil:
		a.Missing = err.Error()
	}
	return a
}

// versions are what programs say of themselves, packages the versions of the packages that they belong to.
var versions, packages kernel.PerFile[string]

// checkVersion reads a program's version, and refuses a runc with known ways out that user namespaces do not close, and tells of one whose ways out they do close. Other runtimes
// have other faults: nothing is known of them here.
func checkVersion(ctx context.Context, cli string) (version, warning string, err error) {
	ctx, cancel := context.WithTimeout(ctx, versionTimeout)
	defer cancel()
	text, err := versions.Of(cli, func() (string, error) {
		cmd := exec.CommandContext(ctx, cli, "--version")
		cmd.WaitDelay = time.Second // what it has started and left does not hold us up
		out, err := cmd.Output()
		if err != nil {
			return "", fmt.Errorf("%s --version: %w: want the program of an OCI runtime, such as runc or crun", cli, err)
		}
		return string(out), ctx.Err()
	})
	if err != nil {
		return "", "", err
	}
	version, _, _ = strings.Cut(text, "\n")
	if !runtimes.MatchString(text) {
		return "", "", fmt.Errorf("%s --version says %q: want the program of an OCI runtime, such as runc or crun", cli, version)
	}
	pkg, unknown := packages.Of(cli, func() (string, error) { return distribution(ctx, cli) })
	warning, err = judge(text, pkg)
	if errors.Is(err, ErrVulnerable) && unknown != nil && !errors.Is(unknown, exec.ErrNotFound) {
		err = fmt.Errorf("%w, unless its distribution has repaired it, which could not be found out: %w", err, unknown)
	}
	return version, warning, err
}

// distribution is the version of the Debian package that a program belongs to, "" none. An error: dpkg-query gave no answer.
func distribution(ctx context.Context, program string) (string, error) {
	path, err := filepath.EvalSymlinks(program)
	if err != nil {
		return "", err
	}
	// Mostly the package has the program's name. A search reads the files of all packages: some 80 ms of a processor at each start of a daemon.
	name := filepath.Base(path)
	out, err := askPackages(ctx, "--listfiles", name)
	if err != nil {
		return "", err
	}
	if !slices.Contains(strings.Split(out, "\n"), path) {
		if out, err = askPackages(ctx, "--search", path); err != nil {
			return "", err
		}
		var ok bool
		if name, _, ok = strings.Cut(out, ":"); !ok {
			return "", nil
		}
	}
	return askPackages(ctx, "--show", "--showformat", "${Version}", name)
}

// askPackages is what dpkg-query answers, "" that it knows of no such package. An error: it could not be started, was killed, or has failed itself.
func askPackages(ctx context.Context, args ...string) (string, error) {
	out, err := exec.CommandContext(ctx, "dpkg-query", args...).Output()
	var exit *exec.ExitError
	switch {
	case ctx.Err() != nil:
		return "", fmt.Errorf("dpkg-query: %w", ctx.Err())
	case errors.As(err, &exit) && exit.ExitCode() == 1: // 2 is a failure, see dpkg-query(1)
		return "", nil
	case err != nil:
		return "", fmt.Errorf("dpkg-query: %w", err)
	}
	return strings.TrimSpace(string(out)), nil
}

// runtimes is in what programs of OCI runtimes say of themselves: "runc version 1.1.5", "kata-runtime  : 3.2.0", "version: 0.6.1", "spec: 1.0.2"; and not in what others
// say, such as lxc-start ("5.0.2").
var runtimes = regexp.MustCompile(`(?mi)^\s*(\S+ version|version\s*:|\S+\s+: |.*\bspecs?\b)`)

var runcVersion = regexp.MustCompile(`(?m)^runc version v?(\d+)\.(\d+)\.(\d+)`)

// repaired finds the revision of a Debian package of runc in which CVE-2024-21626 is repaired: 12 (bookworm) from deb12u1 on, 11 from deb11u3 on.
var repaired = regexp.MustCompile(`\+deb(\d+)u(\d+)$`)

// judge reads what `runc --version` prints. A distribution repairs old versions without a new number: of a package of Debian its revision tells,
// of another distribution's nothing does, and it is told only.
func judge(text, pkg string) (warning string, err error) {
	m := runcVersion.FindStringSubmatch(text)
	if m == nil {
		return "", nil // crun, runsc, kata
	}
	var v [3]int
	for i := range v {
		if v[i], err = strconv.Atoi(m[i+1]); err != nil {
			return "", fmt.Errorf("runc's version %q: %w", m[0], err)
		}
	}
	const remedy = "install runc 1.2.8, 1.3.3 or later"
	if before(v, [3]int{1, 1, 12}) {
		fixed := false
		if d := repaired.FindStringSubmatch(pkg); d != nil {
			release, _ := strconv.Atoi(d[1])
			revision, _ := strconv.Atoi(d[2])
			fixed = release == 12 && revision >= 1 || release == 11 && revision >= 3 || release > 12
		}
		if !fixed && pkg == "" {
			return "", fmt.Errorf("%s: %w (CVE-2024-21626): %s", m[0], ErrVulnerable, remedy)
		}
		if !fixed {
			warning = fmt.Sprintf("%s (package %s) may have CVE-2024-21626, if its distribution has not repaired it: %s", m[0], pkg, remedy)
			return warning, nil
		}
	}
	if before(v, [3]int{1, 2, 8}) || v[1] == 3 && v[0] == 1 && before(v, [3]int{1, 3, 3}) {
		return fmt.Sprintf("%s has CVE-2025-31133, CVE-2025-52565 and CVE-2025-52881, unless its distribution has repaired them; they lead out of containers "+
			"without a user namespace: %s", m[0], remedy), nil
	}
	return "", nil
}

// before compares versions.
func before(a, b [3]int) bool {
	for i := range a {
		if a[i] != b[i] {
			return a[i] < b[i]
		}
	}
	return false
}
