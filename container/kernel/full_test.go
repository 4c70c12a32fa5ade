package kernel

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestAFullDiskIsSaidOnce(t *testing.T) {
	for name, tt := range map[string]struct {
		err  error
		want bool
	}{
		"the kernel's word":   {fmt.Errorf("write record: %w", unix.ENOSPC), true},
		"a program's":         {errors.New("lxc-start: No space left on device - Failed to mount"), true},
		"said already":        {errors.New("disk full: free some space under the engine's data root: no space left on device"), false},
		"something different": {errors.New("permission denied"), false},
	} {
		t.Run(name, func(t *testing.T) {
			got := full(tt.err)
			if said := strings.HasPrefix(got.Error(), "disk full: free some space under the instance's directories: "); said != tt.want || !errors.Is(got, tt.err) {
				t.Errorf("%v", got)
			}
		})
	}
}
