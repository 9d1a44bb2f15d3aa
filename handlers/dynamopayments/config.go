package dynamopayments

import (
	"errors"
	"fmt"

	"github.com/oncemill/oncemill/handlers/dynamotx"
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
	// DynamoDB says where the tables are. Its prefix defaults to "oncemill-payments-".
	DynamoDB dynamotx.Config `yaml:"dynamodb" doc:"where the tables are"`
}

// Defaults returns the configuration that stands before anything is read.
func (Config) Defaults() Config {
	return Config{EquityPrefix: "equity:", DynamoDB: dynamotx.Defaults("oncemill-payments-")}
}

// Validate names the entries that are wrong.
func (c Config) Validate() error {
	var errs []error
	if problem := bookkeeping.CheckID(c.EquityPrefix); problem != "" || len(c.EquityPrefix) > 64 {
		errs = append(errs, errors.New("equity_prefix: must be 1 to 64 bytes of text without control characters"))
	}
	if err := c.DynamoDB.Validate(); err != nil {
		errs = append(errs, fmt.Errorf("dynamodb: %w", err))
	}
	return errors.Join(errs...)
}
