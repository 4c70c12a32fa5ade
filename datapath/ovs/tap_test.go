package ovs

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"weir.dev/weir/datapath"
	"weir.dev/weir/datapath/suite"
	"weir.dev/weir/instance"
	"weir.dev/weir/netns"
)

// There is one user-space datapath in a network namespace. A Weir that comes second is told so, and takes nothing of the first one's with it when it
// goes.
func TestASecondOneInTheNamespace(t *testing.T) {
	r, alice, bob := steered(t, factory)
	second := Options{Instance: instance.Instance{Name: "second", Root: filepath.Join(r.Path("x"), "root"), Run: filepath.Join(r.Path("x"), "run")}}
	err := r.Host.Do(func() error {
		s, err := Open(context.Background(), second)
		if err == nil {
			return errors.Join(errors.New("it opened"), s.Destroy(context.Background()))
		}
		if !errors.Is(err, datapath.ErrTaken) || !strings.Contains(err.Error(), "another Open vSwitch forwards in user space") {
			t.Errorf("got %v", err)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	second.OVSDB = Private // as after a crash that lost the record
	if err := r.Host.Do(func() error { return Destroy(context.Background(), second) }); err != nil {
		t.Error(err)
	}
	if _, err := r.Host.Link(userDatapath); err != nil {
		t.Error(err)
	}
	stream := pace(t, alice, bob, 1000)
	suite.Until(t, "frames come", func() bool { return bob.Count() > 200 })
	stream.end(t)
}

// A tap that a killed ovs-vswitchd left goes with the switch.
func TestTapsOfAKilledOne(t *testing.T) {
	r := suite.NewRig(t, factory)
	s := r.Switch.(tested).Switch
	kill(t, s.processes.own.SwitchPID())
	if _, err := r.Host.Link(userDatapath); err != nil {
		t.Fatalf("the premise: %v", err)
	}
	if err := s.Destroy(context.Background()); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{userDatapath, s.home.Instance.Bridge()} {
		if _, err := r.Host.Link(name); !errors.Is(err, netns.ErrNoLink) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
