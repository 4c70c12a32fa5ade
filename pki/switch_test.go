package pki

import (
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestASwitchsCertificateNamesItsDatapathIDs(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	a, err := NewAuthority(now)
	if err != nil {
		t.Fatal(err)
	}
	other, err := NewAuthority(now)
	if err != nil {
		t.Fatal(err)
	}
	id, err := NewIdentity()
	if err != nil {
		t.Fatal(err)
	}
	request, err := id.Request("x")
	if err != nil {
		t.Fatal(err)
	}
	c, err := a.Switch(request, []uint64{1, 1 << 63}, now, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	got, err := a.CheckSwitch(c, now)
	if diff := cmp.Diff([]uint64{1, 1 << 63}, got); diff != "" || err != nil {
		t.Errorf("%v %s", err, diff)
	}
	host, err := a.Agent(request, "h1", now, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	for name, x := range map[string]struct {
		err, want error
	}{
		"another authority":                  {second(other.CheckSwitch(c, now)), ErrNotSwitch},
		"a host's certificate":               {second(a.CheckSwitch(host, now)), ErrNotSwitch},
		"a switch's certificate as a host's": {second(a.Check(c, now)), ErrStranger},
		"expired":                            {second(a.CheckSwitch(c, now.Add(time.Hour+time.Second))), ErrExpired},
		"too early":                          {second(a.CheckSwitch(c, now.Add(-Backdate-time.Second))), ErrEarly},
	} {
		if !errors.Is(x.err, x.want) {
			t.Errorf("%s: %v, want %v", name, x.err, x.want)
		}
	}
	if _, err := a.Switch(request, nil, now, time.Hour); err == nil {
		t.Error("a certificate without a datapath id is made")
	}
}

func second[T any](_ T, err error) error { return err }
