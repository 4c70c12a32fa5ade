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

// versions are what programs say of themselves, and of which package they are.
var versions kernel.PerFile[said]

type said struct{ text, distribution string }

// checkVersion reads a program's version, and refuses a runc with known ways out that user namespaces do not close, and tells of one whose ways out they do close. Other runtimes
// have other faults: nothing is known of them here.
func checkVersion(ctx context.Context, cli string) (version, warning string, err error) {
	ctx, cancel := context.WithTimeout(ctx, versionTimeout)
	defer cancel()
	v, err := versions.Of(cli, func() (said, error) {
		cmd := exec.CommandContext(ctx, cli, "--version")
		cmd.WaitDelay = time.Second // what it has started and left does not hold us up
		out, err := cmd.Output()
		if err != nil {
			return said{}, fmt.Errorf("%s --version: %w: want the program of an OCI runtime, such as runc or crun", cli, err)
		}
		return said{string(out), distribution(ctx, cli)}, ctx.Err()
	})
	if err != nil {
		return "", "", err
	}
	version, _, _ = strings.Cut(v.text, "\n")
	warning, err = judge(v.text, v.distribution)
	return version, warning, err
}

// distribution is the version of the Debian package that a program belongs to, "" none.
func distribution(ctx context.Context, program string) string {
	path, err := filepath.EvalSymlinks(program)
	if err != nil {
		return ""
	}
	// Mostly the package has the program's name. A search reads the files of all packages: some 80 ms of a processor at each start of a daemon.
	name := filepath.Base(path)
	out, err := exec.CommandContext(ctx, "dpkg-query", "--listfiles", name).Output()
	if err != nil || !slices.Contains(strings.Split(string(out), "\n"), path) {
		out, err = exec.CommandContext(ctx, "dpkg-query", "--search", path).Output()
		var ok bool
		if name, _, ok = strings.Cut(string(out), ":"); err != nil || !ok {
			return ""
		}
	}
	out, err = exec.CommandContext(ctx, "dpkg-query", "--show", "--showformat", "${Version}", name).Output()
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(out))
}

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
