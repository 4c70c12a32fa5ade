package rkt

import (
	"context"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"weir.dev/weir/container"
	"weir.dev/weir/container/kernel"
	"weir.dev/weir/container/kernel/suite"
	"weir.dev/weir/instance"
	"weir.dev/weir/netns"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// documented puts a program into PATH that does what rkt's documentation says, and returns the file that has its calls.
func documented(t *testing.T) string {
	t.Helper()
	dir, err := filepath.Abs("testdata")
	must(t, err)
	calls := filepath.Join(t.TempDir(), "calls")
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	t.Setenv("RKT_CALLS", calls)
	return calls
}

var kit = suite.Kit{Name: Name, Open: func(ctx context.Context, inst instance.Instance, o kernel.Options) (*kernel.Runtime, error) {
	return New(ctx, inst, Options{Options: o})
}}

func TestConformance(t *testing.T) {
	documented(t)
	kit.Run(t)
}

// What rkt is called with, in order: the contract that its documentation is for.
func TestCalls(t *testing.T) {
	calls := documented(t)
	inst := suite.NewInstance(t)
	r, err := New(t.Context(), inst, Options{Options: kernel.Options{Adopt: true}})
	must(t, err)
	defer r.Close()
	defer func() { must(t, r.Destroy(context.Background())) }()
	space := filepath.Join(t.TempDir(), "net")
	must(t, netns.Create(space, netns.Options{Quiet: true}))
	defer func() { must(t, netns.Delete(space)) }()
	shared := t.TempDir()
	s := container.Spec{ID: "fw-1", Rootfs: suite.Rootfs(t), ReadOnly: true, Args: []string{"/bin/sleep", "1000"}, Capabilities: []string{"CAP_NET_ADMIN"}, Netns: space,
		Mounts: []container.Mount{{Source: shared, Target: "/etc/weir", ReadOnly: true}}}
	must(t, r.Create(t.Context(), s))
	must(t, r.Start(t.Context(), s.ID))
	st, err := r.Status(t.Context(), s.ID)
	must(t, err)
	own, err := os.Readlink("/proc/self/ns/net")
	must(t, err)
	if at, err := os.Readlink(filepath.Join("/proc", strconv.Itoa(st.PID), "ns/net")); err != nil || at == own {
		t.Errorf("it runs in %s, %v: want the network namespace of the spec", at, err)
	}
	must(t, r.Stop(t.Context(), s.ID, time.Second))
	must(t, r.Destroy(t.Context()))
	raw, err := os.ReadFile(calls)
	must(t, err)
	bundle, root := filepath.Join(inst.Run, "rkt/bundles/fw-1"), "--dir="+filepath.Join(inst.Run, "rkt/data")
	text := string(raw)
	for _, word := range strings.Fields(text) {
		if isUUID(word) {
			text = strings.ReplaceAll(text, word, "UUID")
		}
	}
	want := root + ` prepare --insecure-options=image --quiet --volume=weir,kind=host,source=` + bundle + `/entry,readOnly=true --volume=weir-log,kind=host,source=` +
		r.LogFile("fw-1") + `,readOnly=false --volume=run,kind=empty,mode=0755 --volume=tmp,kind=empty,mode=1777 --volume=mount-0,kind=host,source=` + shared +
		`,readOnly=true ` + bundle + `/image.aci --name=weir-66772d31 --mount=volume=weir,target=/.weir --mount=volume=weir-log,target=/.weir-log ` +
		`--mount=volume=run,target=/run --mount=volume=tmp,target=/tmp --readonly-rootfs=true ` +
		`--caps-retain=CAP_SETUID,CAP_SETGID,CAP_SETPCAP,CAP_SYS_RESOURCE,CAP_NET_ADMIN --mount=volume=mount-0,target=/etc/weir
` + root + ` run-prepared --net=host --mds-register=false --hostname=fw-1 UUID
` + root + ` list --format=json
` + root + ` list --format=json
` + root + ` stop --force UUID
` + root + ` rm UUID
`
	if diff := cmp.Diff(want, text); diff != "" {
		t.Error(diff)
	}
}

func TestAbout(t *testing.T) {
	t.Run("documented", func(t *testing.T) {
		documented(t)
		if a := About(t.Context()); a.Version != "1.30.0" || a.Missing != "" || a.Userns {
			t.Errorf("%+v", a)
		}
	})
	t.Run("none", func(t *testing.T) {
		t.Setenv("PATH", t.TempDir())
		if a := About(t.Context()); !strings.Contains(a.Missing, "stand-in") {
			t.Errorf("%+v", a)
		}
		inst, err := instance.New("none", t.TempDir())
		must(t, err)
		if _, err := New(t.Context(), inst, Options{}); err == nil || !strings.Contains(err.Error(), "nspawn") {
			t.Errorf("got %v, want a remedy", err)
		}
	})
}

func TestUserNamespaceIsRefused(t *testing.T) {
	e := &Engine{}
	err := e.Prepare(kernel.Container{Spec: container.Spec{ID: "a", Userns: "/proc/self/ns/user"}})
	if err == nil || !strings.Contains(err.Error(), "another runtime") {
		t.Errorf("got %v", err)
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
