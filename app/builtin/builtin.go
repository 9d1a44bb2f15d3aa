// Package builtin links everything that Oncemill ships: every broker, database and plugin. A main of your own does without it, names what
// it uses in an app.Set, and so links nothing else.
package builtin

import (
	"github.com/oncemill/oncemill/adapters/broker"
	"github.com/oncemill/oncemill/adapters/broker/kafkabroker"
	"github.com/oncemill/oncemill/adapters/broker/natsbroker"
	"github.com/oncemill/oncemill/adapters/broker/rabbitbroker"
	"github.com/oncemill/oncemill/adapters/broker/sqlbroker"
	"github.com/oncemill/oncemill/adapters/broker/sqsbroker"
	"github.com/oncemill/oncemill/adapters/store"
	"github.com/oncemill/oncemill/adapters/store/dynamostore"
	"github.com/oncemill/oncemill/adapters/store/mysqlstore"
	"github.com/oncemill/oncemill/adapters/store/pgstore"
	"github.com/oncemill/oncemill/adapters/store/redisstore"
	"github.com/oncemill/oncemill/adapters/store/sqlitestore"
	"github.com/oncemill/oncemill/app"
	"github.com/oncemill/oncemill/handlers"
	"github.com/oncemill/oncemill/handlers/counters"
	"github.com/oncemill/oncemill/handlers/dynamocounters"
	"github.com/oncemill/oncemill/handlers/dynamopayments"
	"github.com/oncemill/oncemill/handlers/email"
	"github.com/oncemill/oncemill/handlers/journal"
	"github.com/oncemill/oncemill/handlers/payments"
)

// Set returns everything that Oncemill ships, under the service name "oncemill".
func Set() app.Set {
	return app.Set{
		Service: "oncemill",
		Brokers: []broker.Factory{
			natsbroker.EmbeddedFactory(),
			rabbitbroker.Factory(),
			kafkabroker.Factory(),
			natsbroker.Factory(),
			sqlbroker.Factory(),
			sqsbroker.Factory(),
		},
		Stores: []store.Factory{
			sqlitestore.Factory(),
			pgstore.Factory(),
			mysqlstore.Factory(),
		},
		Keys: []store.KeysFactory{
			redisstore.Factory(),
			dynamostore.Factory(),
		},
		Plugins: []handlers.Plugin{
			payments.Plugin(),
			email.Plugin(),
			counters.Plugin(),
			journal.Plugin(),
			dynamopayments.Plugin(),
			dynamocounters.Plugin(),
		},
	}
}
