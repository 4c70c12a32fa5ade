package sandbox

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"

	"weir.dev/weir/agent/kernel"
	"weir.dev/weir/image"
	"weir.dev/weir/instance"
	"weir.dev/weir/netns"
)

// What says nothing of user namespaces (a full disk, no descriptors) makes no function root of the host: it is asked again, and nothing starts meanwhile.
func TestAPassingFaultGivesNoFunctionTheHostsRoot(t *testing.T) {
	answers := []error{errors.New("disk full"), fmt.Errorf("x: %w", image.ErrNoShift), nil}
	asked := 0
	i, err := instance.New("adm"+strconv.Itoa(os.Getpid()%1000), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	i.Run = t.TempDir()
	m := &Maker{instance: i, kernel: kernel.Host{}, unshared: onceKnown(func() error { asked++; return answers[asked-1] })}
	if b, err := m.New("f", 1, false); err == nil || !strings.Contains(err.Error(), "not known: disk full") || netns.Exists(b.Net()) {
		t.Errorf("the disk is full: %v", err)
	}
	if f := Feature(errors.New("disk full")); f.OK || !strings.Contains(f.Detail, "not known, so no function starts: disk full") {
		t.Errorf("the host says %+v", f)
	}
	b, err := m.New("f", 1, false)
	if err != nil || netns.Exists(b.user()) || !netns.Exists(b.Net()) {
		t.Errorf("known that it cannot: %v", err)
	}
	if err := m.Unshared(); !Cannot(err) || asked != 2 {
		t.Errorf("asked %d times, the last answer is %v: what is known is not asked again", asked, err)
	}
	if err := m.Remove(t.Context(), b.Dir); err != nil {
		t.Error(err)
	}
}
