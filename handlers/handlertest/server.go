package handlertest

import (
	"crypto/rand"
	"strings"
	"testing"
)

// familyOf is what the names of a test's databases on a server begin with, also of those that its killed processes make. drop
// drops what is left of them when the test ends.
func familyOf(t testing.TB, drop func(family string)) string {
	t.Helper()
	if family := ordersOf(t).Where.Family; family != "" {
		return family
	}
	family := memberOf("handlertest")
	t.Cleanup(func() { drop(family) })
	return family
}

// memberOf is a new name in a family.
func memberOf(family string) string { return family + "_" + strings.ToLower(rand.Text()[:12]) }
