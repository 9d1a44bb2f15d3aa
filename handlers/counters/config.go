package counters

import "github.com/oncemill/oncemill/handlers/internal/tally"

// Config is the plugin's section of the configuration.
type Config struct {
	// PerPayment are the counters that each completed payment adds one to. {currency}, {from} and {to} stand for the payment's. Every
	// payment waits for the commit of the one before on a counter that all of them share; leave "payments.completed" out where that is too slow.
	//
	// Defaults to "payments.completed", "payments.completed:{currency}" and "payments.completed:{currency}:{from}".
	PerPayment []string `yaml:"per_payment" doc:"the counters that each completed payment adds one to; {currency}, {from} and {to} stand for the payment's"`
}

// Defaults returns the configuration that stands before anything is read.
func (Config) Defaults() Config { return Config{PerPayment: tally.PerPayment(TopicCompleted)} }

// Validate names the entry that is wrong.
func (c Config) Validate() error { return tally.CheckPatterns(c.PerPayment) }
