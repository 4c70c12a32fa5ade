package control

import (
	"flag"
	"testing"

	"go.uber.org/goleak"
)

// atOnce is how many tests run at the same time, if nobody says otherwise (-parallel): they wait for timers more than they work. Those in which
// no frame may be lost run alone.
const atOnce = "6"

func TestMain(m *testing.M) {
	if err := flag.Set("test.parallel", atOnce); err != nil {
		panic(err)
	}
	goleak.VerifyTestMain(m)
}
