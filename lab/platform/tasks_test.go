package platform

import (
	"context"
	"path/filepath"
	"testing"
	"time"

	"weir.dev/weir/container/kernel"
)

// A working function in a chain and the tool beside it both carry what stations send each other, and leave nothing behind.
func TestFunctionsAndToolsCarry(t *testing.T) {
	t.Parallel()
	kinds := working()
	for _, name := range []string{"five-judged", "five-bridged"} {
		k, _ := Find(name)
		kinds = append(kinds, k)
	}
	for _, k := range kinds {
		t.Run(k.Name, func(t *testing.T) {
			t.Parallel()
			o := testOptions(t)
			if why := k.Check(o); why != "" {
				t.Fatalf("not on this machine: %s", why)
			}
			ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
			defer cancel()
			p, err := k.Open(ctx, o)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				if err := p.Close(); err != nil {
					t.Error(err)
				}
				for _, pattern := range []string{Run + "/" + o.Name + "-*", Run + "/" + daemonNames(o) + "*", State + "/" + daemonNames(o) + "*", "/var/lib/weir/" + o.Name + "-*"} {
					if left, _ := filepath.Glob(pattern); len(left) > 0 {
						t.Errorf("left behind: %v", left)
					}
				}
			})
			path, err := p.Path(ctx, Layout{Chain: k.Least})
			if err == nil {
				err = path.Try(ctx)
			}
			if err != nil {
				t.Fatal(err)
			}
			if settings, err := path.Conditions(); err != nil || settings[settingShown+"iptables"] != "0" || settings[SettingTSO] != "on" {
				t.Errorf("%v, %v", settings, err)
			}
			// What runs on the way has the same weight in a container as by hand.
			want := ""
			if k.Process && !k.Kernel {
				if want, err = weightOfFunctions(); err != nil {
					t.Fatal(err)
				}
			}
			if got := p.(Described).Conditions()[SettingWeight]; got != want {
				t.Errorf("%s: %q: want %q", SettingWeight, got, want)
			}
		})
	}
}

// weightOfFunctions is what container/kernel gives the group of all.
func weightOfFunctions() (string, error) {
	t, ok, err := findCPU()
	if err != nil || !ok {
		return "", err
	}
	_, text := t.weight(kernel.Weight)
	_, whole := t.weight(weightOf)
	return text + " of " + whole, nil
}
