package image

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestLibrariesAreRead(t *testing.T) {
	got, err := parseLdd("\tlinux-vdso.so.1 (0x7ffc)\n\tlibc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x7f00)\n\t/lib64/ld-linux-x86-64.so.2 (0x7f01)\n")
	if diff := cmp.Diff([]string{"/lib/x86_64-linux-gnu/libc.so.6", "/lib64/ld-linux-x86-64.so.2"}, got); diff != "" || err != nil {
		t.Errorf("%v\n%s", err, diff)
	}
	if _, err := parseLdd("\tlibx.so.1 => not found\n"); err == nil || !strings.Contains(err.Error(), "libx.so.1 is not there") {
		t.Errorf("%v", err)
	}
}
