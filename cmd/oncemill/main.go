// Command oncemill runs event handlers whose effect happens exactly once. To make one of your own, copy
// this file and pass a Set of your plugins.
package main

import (
	"os"

	"github.com/oncemill/oncemill/app"
	"github.com/oncemill/oncemill/app/builtin"
)

func main() { os.Exit(app.Main(builtin.Set())) }
