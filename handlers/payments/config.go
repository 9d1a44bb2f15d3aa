package payments

import (
	"fmt"

	"github.com/oncemill/oncemill/handlers/internal/bookkeeping"
)

// Config is the plugin's section of the configuration.
type Config struct {
	// EquityPrefix begins the ids of the accounts that opening balances are booked against, one for each currency
	// ("equity:EUR"). No other account can have such an id, and no payment can use one. Changing it later starts new equity accounts beside
	// the old ones; the ledger stays balanced.
	//
	// Defaults to "equity:".
	EquityPrefix string `yaml:"equity_prefix" doc:"how the ids of the accounts begin that opening balances are booked against, one for each currency"`
}

// Defaults returns the configuration that stands before anything is read.
func (Config) Defaults() Config { return Config{EquityPrefix: "equity:"} }

// Validate names the key that is wrong.
func (c Config) Validate() error {
	if err := bookkeeping.CheckID(c.EquityPrefix); err != "" || len(c.EquityPrefix) > 64 {
		return fmt.Errorf("equity_prefix: must be 1 to 64 bytes of text without control characters")
	}
	return nil
}
