package image

import (
	"context"
	"crypto/sha256"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
)

// Tools are what the bytes of an image without Debian packages depend on, besides its sources: the platform, Go as it is chosen in a directory, the C compiler, and the
// busybox of the base. The same tools make the same image of the same sources.
func Tools(ctx context.Context, dir string) ([]string, error) {
	level := "GO" + strings.ToUpper(runtime.GOARCH) // GOAMD64, GOARM64: which processors a program is for
	cmd := exec.CommandContext(ctx, "go", "env", "GOVERSION", level)
	cmd.Dir = dir
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("which Go this is: %w", err)
	}
	version, value, _ := strings.Cut(strings.TrimSpace(string(out)), "\n")
	compiler, err := findC()
	if err != nil {
		return nil, err
	}
	out, err = exec.CommandContext(ctx, compiler, "--version").Output()
	if err != nil {
		return nil, fmt.Errorf("%s --version: %w", compiler, err)
	}
	first, _, _ := strings.Cut(string(out), "\n")
	busybox, err := os.ReadFile(busyboxProgram)
	if err != nil {
		return nil, fmt.Errorf("%w: apt-get install busybox-static", err)
	}
	return []string{
		"platform linux/" + runtime.GOARCH,
		strings.TrimSpace(fmt.Sprintf("Go %s %s=%s", version, level, value)),
		"C compiler " + first,
		fmt.Sprintf("busybox sha256:%x", sha256.Sum256(busybox)),
	}, nil
}
