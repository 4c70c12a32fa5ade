package oci

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"weir.dev/weir/container/kernel/suite"
)

func TestRuntimesWithKnownEscapesAreToldOrRefused(t *testing.T) {
	for name, c := range map[string]struct {
		text, pkg string
		warning   string
		refused   bool
	}{
		"Debian 12, repaired":     {"runc version 1.1.5+ds1\ncommit: 1.1.5+ds1-1+deb12u1\n", "1.1.5+ds1-1+deb12u1", "CVE-2025-31133", false},
		"Debian 12, not repaired": {"runc version 1.1.5+ds1\n", "1.1.5+ds1-1+b1", "may have CVE-2024-21626", false},
		"the same, built by hand": {"runc version 1.1.5\n", "", "", true},
		"before the repair":       {"runc version 1.1.11\n", "", "", true},
		"much before":             {"runc version 1.0.0-rc93\n", "", "", true},
		"Debian 11, repaired":     {"runc version 1.0.0~rc93+ds1\n", "1.0.0~rc93+ds1-5+deb11u5", "CVE-2025-31133", false},
		"another distribution":    {"runc version 1.1.7\n", "1.1.7-0ubuntu1~22.04.2", "may have CVE-2024-21626", false},
		"the first repair":        {"runc version 1.1.12\n", "", "CVE-2025-52565", false},
		"1.2.7":                   {"runc version 1.2.7\n", "", "CVE-2025-52881", false},
		"1.2.8":                   {"runc version 1.2.8\n", "", "", false},
		"1.3.2":                   {"runc version 1.3.2\n", "", "CVE-2025-31133", false},
		"1.3.3":                   {"runc version 1.3.3\n", "", "", false},
		"1.4.0":                   {"runc version 1.4.0\n", "", "", false},
		"another runtime":         {"crun version 1.8.1\n", "", "", false},
	} {
		t.Run(name, func(t *testing.T) {
			warning, err := judge(c.text, c.pkg)
			if errors.Is(err, ErrVulnerable) != c.refused || err != nil && !strings.Contains(err.Error(), "install runc") {
				t.Errorf("got %v", err)
			}
			if (warning != "") != (c.warning != "") || !strings.Contains(warning, c.warning) {
				t.Errorf("warning %q, want %q", warning, c.warning)
			}
		})
	}
}

// A runtime that is refused starts nothing; by the operator's word it does.
func TestVulnerableRuntimeIsRefused(t *testing.T) {
	cli := filepath.Join(t.TempDir(), "runc")
	must(t, os.WriteFile(cli, []byte("#!/bin/sh\ncase \"$1\" in --version) echo runc version 1.1.11; exit;; esac\nexec runc \"$@\"\n"), 0o755))
	inst := suite.NewInstance(t)
	if _, err := New(t.Context(), inst, Options{CLI: cli}); !errors.Is(err, ErrVulnerable) || !strings.Contains(err.Error(), "CVE-2024-21626") || !strings.Contains(err.Error(), "--allow-vulnerable-runtime") {
		t.Errorf("got %v", err)
	}
	r, err := New(t.Context(), inst, Options{CLI: cli, Vulnerable: true})
	must(t, err)
	must(t, r.Destroy(t.Context()))
	must(t, r.Close())
}

// What dpkg-query could not say is asked again, and is said meanwhile: the program may well be repaired.
func TestAPackageThatCouldNotBeAskedForIsAskedForAgain(t *testing.T) {
	dir := t.TempDir()
	cli, query := filepath.Join(dir, "runc"), filepath.Join(dir, "dpkg-query")
	must(t, os.WriteFile(cli, []byte("#!/bin/sh\necho runc version 1.1.5\n"), 0o755))
	t.Setenv("PATH", dir+":/usr/bin:/bin")
	for _, c := range []struct {
		script  string
		refused bool
		says    string
	}{
		{"", true, "could not be found out: dpkg-query: fork/exec"}, // no program
		{"#!/bin/sh\nexit 2\n", true, "could not be found out: dpkg-query: exit status 2"},
		{"#!/bin/sh\nkill -9 $$\n", true, "could not be found out: dpkg-query: signal: killed"},
		{"#!/bin/sh\ncase $1 in --search) echo runc: $2;; *) echo 1.1.5+ds1-1+deb12u1;; esac\n", false, "CVE-2025-31133"},
		{"#!/bin/sh\nexit 1\n", false, "CVE-2025-31133"}, // an answer is kept
	} {
		must(t, os.RemoveAll(query))
		must(t, os.WriteFile(query, []byte(c.script), 0o755))
		_, warning, err := checkVersion(t.Context(), cli)
		if errors.Is(err, ErrVulnerable) != c.refused || c.refused && !strings.Contains(err.Error(), c.says) || !c.refused && !strings.Contains(warning, c.says) {
			t.Errorf("%q: %q, %v; want %q", c.script, warning, err, c.says)
		}
	}
}

// No dpkg-query, no package of Debian's: there is nothing to be found out.
func TestWithoutDpkgAProgramIsOfNoPackage(t *testing.T) {
	dir := t.TempDir()
	cli := filepath.Join(dir, "runc")
	must(t, os.WriteFile(cli, []byte("#!/bin/sh\necho runc version 1.1.5\n"), 0o755))
	t.Setenv("PATH", dir)
	if _, _, err := checkVersion(t.Context(), cli); !errors.Is(err, ErrVulnerable) || strings.Contains(err.Error(), "found out") {
		t.Errorf("got %v", err)
	}
}

// A program's package is found where it has the program's name and where it has not, also by a link; a program of nobody's has none.
func TestDistribution(t *testing.T) {
	link := filepath.Join(t.TempDir(), "program")
	if err := os.Symlink("/usr/bin/dpkg-query", link); err != nil {
		t.Fatal(err)
	}
	version := func(pkg string) string {
		out, err := exec.Command("dpkg-query", "--show", "--showformat", "${Version}", pkg).Output()
		if err != nil {
			t.Fatalf("package %s: %v", pkg, err)
		}
		return string(out)
	}
	for program, want := range map[string]string{"/usr/bin/curl": version("curl"), "/usr/bin/dpkg-query": version("dpkg"), link: version("dpkg"), os.Args[0]: ""} {
		if got, err := distribution(t.Context(), program); got != want || err != nil {
			t.Errorf("%s: %q, %v, want %q", program, got, err, want)
		}
	}
}

// A program that is none of an OCI runtime is found out before it is to make a container.
func TestProgramsOfOtherThings(t *testing.T) {
	for text, want := range map[string]bool{
		"runc version 1.1.5+ds1\nspec: 1.0.2-dev\n": true, "crun version 1.8.1\n": true, "runsc version release-20240212.0\n": true, "youki version 0.3.3\n": true,
		"kata-runtime  : 3.2.0\n   commit   : a\n   OCI specs: 1.0.2\n": true, "sysbox-runc\n\tedition: \tCommunity Edition (CE)\n\tversion: \t0.6.1\n": true,
		"5.0.2\n": false, "": false, "true (GNU coreutils) 9.1\nCopyright (C) 2022\nLicense GPLv3+: GNU GPL version 3 or later.\n": false,
	} {
		if got := runtimes.MatchString(text); got != want {
			t.Errorf("%q: %v", text, got)
		}
	}
	program := filepath.Join(t.TempDir(), "other")
	must(t, os.WriteFile(program, []byte("#!/bin/sh\necho 5.0.2\n"), 0o755))
	want := program + ` --version says "5.0.2": want the program of an OCI runtime, such as runc or crun`
	if a := About(t.Context(), Options{CLI: program}); a.Missing != want {
		t.Errorf("%q, want %q", a.Missing, want)
	}
}
