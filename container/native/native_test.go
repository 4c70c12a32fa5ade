package native

import (
	"os"
	"testing"

	"go.uber.org/goleak"

	"weir.dev/weir/container/kernel/suite"
)

func TestMain(m *testing.M) {
	if os.Args[0] == probe {
		attempt(os.Args[1:])
		return
	}
	goleak.VerifyTestMain(m)
}

var (
	kit     = suite.Kit{Name: Name, Open: New}
	bareKit = suite.Kit{Name: Bare, Open: NewBare, Bare: true}
)

func TestEngine(t *testing.T)         { kit.Run(t) }
func TestBare(t *testing.T)           { bareKit.Run(t) }
func TestLaunched(t *testing.T)       { kit.Launched(t) }
func TestFailingCreates(t *testing.T) { kit.FailingCreates(t) }
func TestChild(t *testing.T)          { kit.Child(t); bareKit.Child(t) }
func TestExecChild(t *testing.T)      { kit.ExecChild(t); bareKit.ExecChild(t) }
func BenchmarkLifecycle(b *testing.B) { kit.Lifecycle(b) }
func BenchmarkParallel(b *testing.B)  { kit.Parallel(b) }
