package fake_test

import (
	"strconv"
	"testing"

	"weir.dev/weir/container/fake"
	"weir.dev/weir/container/suite"
)

func TestConformance(t *testing.T) {
	suite.Run(t, func(*testing.T) suite.Driver {
		return suite.Driver{
			Runtime:  fake.New(),
			Wait:     []string{"wait"},
			Stubborn: []string{"stubborn"},
			Exit:     func(code int) []string { return []string{"exit", strconv.Itoa(code)} },
			Print:    func(text string) []string { return []string{"print", text} },
			Cat:      []string{"cat"}, ExitCodes: true,
		}
	})
}
