package dynamocounters

import (
	"errors"
	"fmt"

	"github.com/oncemill/oncemill/handlers/dynamotx"
	"github.com/oncemill/oncemill/handlers/internal/tally"
)

// Config is the plugin's section of the configuration.
type Config struct {
	// PerPayment are the counters that each completed payment adds one to. {currency}, {from} and {to} stand for the payment's. All payments
	// that share a counter get in each other's way; leave "payments.completed" out where that is too slow.
	//
	// Defaults to "payments.completed", "payments.completed:{currency}" and "payments.completed:{currency}:{from}".
	PerPayment []string `yaml:"per_payment" doc:"the counters that each completed payment adds one to; {currency}, {from} and {to} stand for the payment's"`
	// DynamoDB says where the tables are. Its prefix defaults to "oncemill-counters-".
	DynamoDB dynamotx.Config `yaml:"dynamodb" doc:"where the tables are"`
}

// Defaults returns the configuration that stands before anything is read.
func (Config) Defaults() Config {
	return Config{PerPayment: tally.PerPayment(TopicCompleted), DynamoDB: dynamotx.Defaults("oncemill-counters-")}
}

// Validate names the entries that are wrong.
func (c Config) Validate() error {
	var errs []error
	if err := c.DynamoDB.Validate(); err != nil {
		errs = append(errs, fmt.Errorf("dynamodb: %w", err))
	}
	return errors.Join(append(errs, tally.CheckPatterns(c.PerPayment))...)
}
