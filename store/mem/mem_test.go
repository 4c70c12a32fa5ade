package mem_test

import (
	"testing"

	"weir.dev/weir/store"
	"weir.dev/weir/store/mem"
	"weir.dev/weir/store/suite"
)

func TestSuite(t *testing.T) {
	suite.Run(t, func(*testing.T) store.Store { return mem.New() })
}
