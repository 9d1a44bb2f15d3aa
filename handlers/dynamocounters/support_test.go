package dynamocounters_test

import (
	"time"

	"github.com/goccy/go-yaml"

	"github.com/oncemill/oncemill/handlers"
	"github.com/oncemill/oncemill/handlers/dynamocounters"
)

// patience is longer than any wait of a parked message.
const patience = time.Hour

func openWith(config string) error {
	return dynamocounters.Plugin().Open(func(target any) error {
		return yaml.UnmarshalWithOptions([]byte(config), target, yaml.Strict())
	}, handlers.NewBindings("counters-dynamodb"))
}
