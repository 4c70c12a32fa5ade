package nspawn

import (
	"context"
	"testing"

	"go.uber.org/goleak"

	"weir.dev/weir/container/kernel"
	"weir.dev/weir/container/kernel/suite"
	"weir.dev/weir/instance"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var kit = suite.Kit{Name: Name, Open: func(ctx context.Context, inst instance.Instance, o kernel.Options) (*kernel.Runtime, error) {
	return New(ctx, inst, Options{Options: o})
}}

func TestEngine(t *testing.T)        { kit.Run(t) }
func TestLaunched(t *testing.T)      { kit.Launched(t) }
func TestMonitorKilled(t *testing.T) { kit.MonitorKilled(t) }
func TestProgram(t *testing.T) {
	kit.Program(t, program, "systemd 252 (252.39-1~deb12u2)", "systemd 241 (241)")
}
func TestChild(t *testing.T)          { kit.Child(t) }
func TestExecChild(t *testing.T)      { kit.ExecChild(t) }
func BenchmarkLifecycle(b *testing.B) { kit.Lifecycle(b) }
func BenchmarkParallel(b *testing.B)  { kit.Parallel(b) }
