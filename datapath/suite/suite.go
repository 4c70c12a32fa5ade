package suite

import "testing"

// Run runs the suite against a driver.
func Run(t *testing.T, open Factory) {
	for _, test := range []struct {
		name string
		run  func(*testing.T, Factory)
	}{
		{"steering as the reference switch does", testSteering},
	} {
		t.Run(test.name, func(t *testing.T) { test.run(t, open) })
	}
}
