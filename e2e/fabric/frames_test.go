package fabric

import (
	"testing"

	"weir.dev/weir/e2e/rig"
)

// listen starts a capture at an interface of a namespace; it ends with the test.
func listen(t *testing.T, space, link string) *rig.Capture {
	t.Helper()
	c, err := rig.Listen(space, link)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// newSender is one at an interface of a namespace; it ends with the test.
func newSender(t *testing.T, space, link string) *rig.Sender {
	t.Helper()
	s, err := rig.NewSender(space, link)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}
