package image

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
)

// Libraries of a program, the loader among them, as ldd tells them; a static program has none.
func Libraries(ctx context.Context, path string) ([]string, error) {
	cmd := exec.CommandContext(ctx, "ldd", path)
	cmd.Env = append(cmd.Environ(), "LC_ALL=C")
	out, err := cmd.CombinedOutput()
	if bytes.Contains(out, []byte("not a dynamic executable")) || bytes.Contains(out, []byte("statically linked")) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("ldd: %w: %s", err, bytes.TrimSpace(out))
	}
	return parseLdd(string(out))
}

// parseLdd reads lines such as "libc.so.6 => /lib/libc.so.6 (0x7f)" and "/lib64/ld-linux-x86-64.so.2 (0x7f)"; what the kernel itself has is no file.
func parseLdd(out string) (files []string, err error) {
	for lines := bufio.NewScanner(strings.NewReader(out)); lines.Scan(); {
		name, place, arrow := strings.Cut(strings.TrimSpace(lines.Text()), " => ")
		if !arrow {
			place = name
		}
		if strings.HasPrefix(place, "not found") {
			return nil, fmt.Errorf("library %s is not there: install the program's package anew", name)
		}
		if file, _, ok := strings.Cut(place, " ("); ok && filepath.IsAbs(file) {
			files = append(files, filepath.Clean(file))
		}
	}
	return files, nil
}
