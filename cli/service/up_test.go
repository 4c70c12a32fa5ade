package service

import (
	"path/filepath"
	"slices"
	"testing"

	"weir.dev/weir/cli/command"
	"weir.dev/weir/instance"
)

// The daemon in the background works in another directory: it finds the files that the command line names.
func TestPathsOfADaemonInTheBackground(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	at := func(name string) string { return filepath.Join(dir, name) }
	for _, c := range []struct{ flag, want string }{
		{"--verify=registry.example.org/nf/*=keys/nf.pub", "--verify=registry.example.org/nf/*=" + at("keys/nf.pub")},
		{"--verify=*=/etc/nf.pub", "--verify=*=/etc/nf.pub"},
		{"--verify=nf/test=none", "--verify=nf/test=none"},
		{"--lab=runs", "--lab=" + at("runs")},
		{"--lab=none", "--lab=none"},
		{"--lab=", "--lab="},
		{"--kvm-kernel=vmlinux", "--kvm-kernel=" + at("vmlinux")},
		{"--restore=weir.backup", "--restore=" + at("weir.backup")},
		{"--runtime=crun", "--runtime=crun"},
		{"--runtime=./crun", "--runtime=" + at("crun")},
		{"--registry=ghcr.io/nf", "--registry=ghcr.io/nf"},
	} {
		cmd := (&commands{App: &command.App{}}).upCommand()
		if err := cmd.ParseFlags([]string{c.flag}); err != nil {
			t.Fatal(err)
		}
		if got := backgroundArgs(cmd, instance.Instance{}); !slices.Contains(got, c.want) {
			t.Errorf("%s: %q, want %s", c.flag, got, c.want)
		}
	}
}
