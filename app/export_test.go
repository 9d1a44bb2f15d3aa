package app

// Builtin is app/builtin's Set.
var Builtin func() Set

// UseInTests sets Builtin.
func UseInTests(builtin func() Set) bool {
	Builtin = builtin
	return true
}
