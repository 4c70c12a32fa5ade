package rig

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"

	"weir.dev/weir/container/docker/dockerd"
)

// dockerScript is the runtime that Weir writes for Docker engines.
const dockerScript = "/var/lib/weir/docker-runtime"

var engines atomic.Int32

// DockerEngine starts a private Docker engine that knows Weir's runtime, for a test. A daemon finds it by DOCKER_HOST in its environment: the value is returned.
func DockerEngine(t *testing.T) (host string) {
	t.Helper()
	if _, err := os.Stat(dockerScript); errors.Is(err, fs.ErrNotExist) {
		t.Cleanup(func() { _ = os.Remove(dockerScript) })
	}
	dir := fmt.Sprintf("/run/weir-dockerd-e%x-%d", os.Getpid(), engines.Add(1))
	d, err := dockerd.Start(t.Context(), dockerd.Options{Dir: dir, Name: filepath.Base(dir), Runtimes: map[string]string{"weir": dockerScript}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	return d.Host()
}

// MachineKernel is a kernel for virtual machines, which make peers unpacks.
func MachineKernel(t *testing.T) string {
	t.Helper()
	top, err := Top()
	if err != nil {
		t.Fatal(err)
	}
	found, err := filepath.Glob(filepath.Join(top, "build/vm/kern/boot/vmlinuz-*-cloud-amd64"))
	if err != nil || len(found) == 0 {
		t.Fatalf("no kernel in build/vm (make peers): %v", err)
	}
	return found[0]
}
