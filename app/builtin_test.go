package app_test

import (
	"github.com/oncemill/oncemill/app"
	"github.com/oncemill/oncemill/app/builtin"
)

// The tests of package app use everything that ships, which imports app itself.
var _ = app.UseInTests(builtin.Set)
