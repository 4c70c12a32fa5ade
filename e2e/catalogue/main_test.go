package catalogue

import (
	"flag"
	"os"
	"testing"
)

// atOnce is how many tests run at the same time, if nobody says otherwise (-parallel): they wait for functions that come up, and for clients, more than they
// work. Those that measure a rate, or give the manager much to do, run alone, before the others.
const atOnce = "3"

func TestMain(m *testing.M) {
	if err := flag.Set("test.parallel", atOnce); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}
