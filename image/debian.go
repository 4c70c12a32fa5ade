package image

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"time"
)

const (
	// debianMethod is a part of every key of the cache: another number, and what was built the former way is not taken.
	debianMethod = 1
	// debianEpoch is the time of files that packages' scripts make. It is not 0: in /etc/shadow that would mean an expired password.
	debianEpoch  = 1577836800
	debianWithin = 30 * time.Minute
	maxPackages  = 100
)

var (
	debianBase    = regexp.MustCompile(`^debian(:[a-z]+)?$`)
	debianPackage = regexp.MustCompile(`^[a-z0-9][a-z0-9+.-]+$`)
)

// debian is what the layers of Debian packages in an image are made from.
type debian struct {
	suite   string
	sources []string // lines of sources.list
}

// Debian's archive, for who is not on Debian.
const (
	debianSuite    = "trixie"
	debianKeyring  = "/usr/share/keyrings/debian-archive-keyring.gpg"
	debianMirror   = "http://ftp.debian.org/debian"
	debianSecurity = "http://security.debian.org/debian-security"
	// EnvDebianMirror names another mirror of Debian's archive, for who is not on Debian.
	EnvDebianMirror = "WEIR_DEBIAN_MIRROR"
)

// findDebian takes the sources of Debian: on Debian from those that apt has, with the suites of this machine's release or the same ones of another; on Ubuntu and
// others like it Debian's archive, by Debian's keys.
func findDebian(ctx context.Context, suite string) (debian, error) {
	id, own, err := release("/etc/os-release")
	if err != nil {
		return debian{}, err
	}
	if id != "debian" {
		return elsewhere(suite, debianKeyring, os.Getenv(EnvDebianMirror))
	}
	cmd := exec.CommandContext(ctx, "apt-get", "indextargets", "--format", "$(SITE) $(RELEASE) $(COMPONENT)", "Identifier: Packages")
	out, err := cmd.Output()
	if errors.Is(err, exec.ErrNotFound) {
		return debian{}, errors.New("apt-get is missing: images of Debian packages are built on Debian or Ubuntu; pull or import them elsewhere")
	}
	if err != nil {
		return debian{}, fmt.Errorf("sources of apt: %s: %w%s", strings.Join(cmd.Args, " "), err, said(err))
	}
	d := debian{suite: suite}
	if d.suite == "" {
		d.suite = own
	}
	d.sources = sources(string(out), own, d.suite)
	if len(d.sources) == 0 {
		return debian{}, fmt.Errorf("apt has no source with the suite %s of this machine: add Debian's archive to /etc/apt/sources.list.d", own)
	}
	return d, nil
}

// elsewhere are Debian's sources on a machine that is not Debian; a mirror that is empty is Debian's own. What mmdebstrap needs beside them is apt.
func elsewhere(suite, keyring, mirror string) (debian, error) {
	if _, err := exec.LookPath("apt-get"); err != nil {
		return debian{}, errors.New("apt-get is missing: images of Debian packages are built on Debian or Ubuntu; pull or import them elsewhere")
	}
	if _, err := os.Stat(keyring); err != nil {
		return debian{}, fmt.Errorf("the keys of Debian are missing: %w: apt-get install debian-archive-keyring", err)
	}
	if suite == "" {
		suite = debianSuite
	}
	by := "deb [signed-by=" + keyring + "] "
	if mirror != "" {
		return debian{suite: suite, sources: []string{by + mirror + " " + suite + " main"}}, nil
	}
	return debian{suite: suite, sources: []string{
		by + debianMirror + " " + suite + " main", by + debianMirror + " " + suite + "-updates main", by + debianSecurity + " " + suite + "-security main",
	}}, nil
}

// release that this machine runs: a distribution and the name of its version. One that is not Debian may have no name.
func release(file string) (id, name string, err error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return "", "", fmt.Errorf("which system this machine has: %w", err)
	}
	for line := range strings.Lines(string(text)) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		switch value = strings.Trim(value, `"'`); key {
		case "ID":
			id = value
		case "VERSION_CODENAME":
			name = value
		}
	}
	if id == "debian" && name == "" {
		return "", "", fmt.Errorf("%s: no VERSION_CODENAME: want the name of a release of Debian, such as %s", file, debianSuite)
	}
	return id, name, nil
}

// sources are apt's of a release, its updates and its security updates, with another release in its place.
func sources(targets, own, wanted string) (out []string) {
	components := map[string][]string{} // by site and suite
	var order []string
	for line := range strings.Lines(targets) {
		f := strings.Fields(line)
		if len(f) != 3 {
			continue
		}
		rest, ok := strings.CutPrefix(f[1], own)
		if !ok || rest != "" && rest != "-updates" && rest != "-security" {
			continue
		}
		key := f[0] + " " + wanted + rest
		if components[key] == nil {
			order = append(order, key)
		}
		if !slices.Contains(components[key], f[2]) {
			components[key] = append(components[key], f[2])
		}
	}
	for _, key := range order {
		slices.Sort(components[key])
		out = append(out, "deb "+key+" "+strings.Join(components[key], " "))
	}
	slices.Sort(out)
	return out
}

// said is what a program that failed printed to its standard error.
func said(err error) string {
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return "\n" + string(bytes.TrimSpace(exit.Stderr))
	}
	return ""
}

// layers of the base and, above it, of the packages. Both come from the cache, if they are there: then nothing is fetched.
func (r Recipe) debianLayers(ctx context.Context) ([]builtLayer, error) {
	d, err := findDebian(ctx, r.suite())
	if err != nil {
		return nil, err
	}
	dir, err := buildCacheDir()
	if err != nil {
		return nil, err
	}
	c := &buildCache{dir, maxBuildCache}
	base, err := d.layer(ctx, c, nil, nil, r)
	if err != nil {
		return nil, err
	}
	out := []builtLayer{{base, "weir image build debian " + d.suite}}
	if len(r.Packages) > 0 {
		packages := slices.Compact(slices.Sorted(slices.Values(r.Packages)))
		own, err := d.layer(ctx, c, base, packages, r)
		if err != nil {
			return nil, err
		}
		out = append(out, builtLayer{own, "weir image build debian " + d.suite + ": " + strings.Join(packages, " ")})
	}
	return out, nil
}

// layer of packages: what they add to the base.
func (d debian) layer(ctx context.Context, c *buildCache, base *cachedLayer, packages []string, r Recipe) (*cachedLayer, error) {
	by := "debian " + d.suite
	if len(packages) > 0 {
		by += ": " + strings.Join(packages, " ")
	}
	key := struct {
		Method            int
		Arch, Suite, Base string
		Sources, Packages []string
	}{Method: debianMethod, Arch: runtime.GOARCH, Suite: d.suite, Sources: d.sources, Packages: packages}
	if base != nil {
		key.Base = base.diffID.String()
	}
	raw, err := json.Marshal(key)
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(raw)
	l, err := c.layer(ctx, hex.EncodeToString(sum[:]), by, r.Anew, func(to *os.File, work string) error {
		if r.Say != nil {
			r.Say("fetching and installing " + by)
		}
		full := filepath.Join(work, "debian.tar")
		if err := d.install(ctx, packages, full, work); err != nil {
			return err
		}
		return writeDelta(ctx, base, full, to)
	})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", by, err)
	}
	return l, nil
}

// install makes an archive of a root with the essential packages and some more.
func (d debian) install(ctx context.Context, packages []string, out, work string) error {
	ctx, cancel := context.WithTimeout(ctx, debianWithin)
	defer cancel()
	argv := []string{"mmdebstrap", "--variant=essential", "--format=tar", "--skip=output/dev", "--dpkgopt=force-unsafe-io",
		"--aptopt=Acquire::Retries \"3\"", "--aptopt=Acquire::http::Timeout \"30\"", "--aptopt=APT::Install-Recommends \"false\""}
	argv = append(argv, aptOptions(ctx)...)
	if len(packages) > 0 {
		argv = append(argv, "--include="+strings.Join(packages, ","))
	}
	argv = append(append(argv, d.suite, out), d.sources...)
	if _, err := exec.LookPath(argv[0]); err != nil {
		return errors.New("mmdebstrap is missing: apt-get install mmdebstrap")
	}
	if os.Geteuid() == 0 { // what it mounts and starts ends with it, also when it is killed
		argv = append([]string{"unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "--"}, argv...)
	}
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Dir = "/"
	cmd.Env = append(os.Environ(), "TMPDIR="+work, "LC_ALL=C", "DEBIAN_FRONTEND=noninteractive", fmt.Sprintf("SOURCE_DATE_EPOCH=%d", debianEpoch))
	cmd.WaitDelay = 10 * time.Second
	text, err := cmd.CombinedOutput()
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return fmt.Errorf("mmdebstrap: %w", ctx.Err())
	}
	return fmt.Errorf("mmdebstrap, with the sources %s: %w\n%s", strings.Join(d.sources, ", "), err, why(string(text)))
}

// aptOptions are this machine's options of fetching: proxies, and whether dates are checked.
func aptOptions(ctx context.Context) (out []string) {
	text, err := exec.CommandContext(ctx, "apt-config", "dump", "--no-empty", "Acquire").Output()
	if err != nil {
		return nil // without them
	}
	for line := range strings.Lines(string(text)) {
		name, value, _ := strings.Cut(strings.TrimSuffix(strings.TrimSpace(line), ";"), " ")
		if strings.Contains(name, "::Proxy") || strings.HasPrefix(name, "Acquire::Check-") {
			out = append(out, "--aptopt="+name+" "+value)
		}
	}
	return out
}

// why takes the errors out of what mmdebstrap printed, or its end.
func why(text string) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	var errs []string
	for i, l := range lines {
		unmet := strings.Contains(l, "unmet dependencies")
		if !strings.HasPrefix(l, "E: ") && !unmet || strings.HasPrefix(l, "E: setup failed") || strings.HasPrefix(l, "E: mmdebstrap failed") {
			continue
		}
		if unmet {
			l = strings.Join(lines[i:min(len(lines), i+5)], "\n")
		}
		errs = append(errs, l)
	}
	if len(errs) == 0 {
		errs = lines
	}
	return strings.Join(errs[max(0, len(errs)-15):], "\n")
}

// dropped tells what of a root is not for an image: what tells of the machine that built it, what mmdebstrap and apt keep, and what only people read.
func dropped(name string) bool {
	for _, dir := range []string{"dev", "proc", "sys", "run", "tmp", "var/cache", "var/lib/apt", "var/log", "var/tmp", "usr/share/man", "usr/share/info", "usr/share/locale",
		"usr/share/lintian", "usr/share/bug", "usr/share/gdb", "usr/share/bash-completion"} {
		if strings.HasPrefix(name, dir+"/") {
			return true
		}
	}
	switch name {
	case "etc/hostname", "etc/resolv.conf", "etc/machine-id", "etc/apt/sources.list", "etc/apt/apt.conf.d/99mmdebstrap", "etc/dpkg/dpkg.cfg.d/99mmdebstrap":
		return true
	}
	if strings.HasPrefix(name, "usr/share/doc/") && !strings.HasSuffix(name, "/copyright") && strings.Count(name, "/") > 3 {
		return true // a package's folder stays, with its licence
	}
	return strings.HasPrefix(name, "var/lib/dpkg/") && strings.HasSuffix(name, "-old")
}

// buildCacheDir is where finished layers of packages are kept: WEIR_BUILD_CACHE, or in the user's cache directory.
func buildCacheDir() (string, error) {
	if dir := os.Getenv("WEIR_BUILD_CACHE"); dir != "" {
		return filepath.Abs(dir)
	}
	dir, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("%w: set WEIR_BUILD_CACHE to a directory for layers of Debian packages", err)
	}
	return filepath.Join(dir, "weir", "build"), nil
}
