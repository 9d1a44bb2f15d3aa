package brokertest

import (
	"strings"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/oncemill/oncemill/adapters/broker"
	"github.com/oncemill/oncemill/middleware/envelope"
)

var contractTests = []test{
	{"ContractRefusesMessage", testContractRefusesMessage},
	{"ContractRefusesTopic", testContractRefusesTopic},
}

// violations are messages that no broker may see.
func violations() map[string]func(msg *message.Message) {
	set := func(name, value string) func(*message.Message) {
		return func(msg *message.Message) { msg.Metadata.Set(name, value) }
	}
	return map[string]func(msg *message.Message){
		"payload of 2 MiB":          func(msg *message.Message) { msg.Payload = make([]byte, 2<<20) },
		"metadata name of 256":      set(strings.Repeat("n", 256), "v"),
		"metadata of 40 KiB":        set("n", strings.Repeat("v", 40<<10)),
		"reserved by Watermill":     set("_watermill_message_uuid", "v"),
		"reserved by Oncemill":      set("oncemill-made-up-name", "v"),
		"metadata name not UTF-8":   set("n\xff", "v"),
		"metadata value not UTF-8":  set("n", "v\xff"),
		"UUID of 37":                func(msg *message.Message) { msg.UUID = strings.Repeat("u", 37) },
		"key of 256":                set(envelope.KeyHeader, strings.Repeat("k", 256)),
		"key with control (F013)":   set(envelope.KeyHeader, "a\x00b"),
		"key that is empty (F012)":  set(envelope.KeyHeader, ""),
		"key not UTF-8 (F013)":      set(envelope.KeyHeader, "\xff\xfeA"),
		"key with escape and color": set(envelope.KeyHeader, "a\x1b[31mb"),
	}
}

// What breaks the contract is refused before the broker sees it, says so by type, and leaves no trace.
func testContractRefusesMessage(k *kit) {
	b, topic := k.declared("g")
	for name, spoil := range violations() {
		msg := newMessage("refused: " + name)
		spoil(msg)
		var violation *envelope.Violation
		require.ErrorAs(k, b.Publisher().Publish(topic, msg), &violation, name)

		errs := b.Publisher().PublishBatch(k.Context(), topic, []*message.Message{msg})
		require.Len(k, errs, 1, name)
		require.ErrorAs(k, errs[0], &violation, name)
		require.NotEmpty(k, violation.Rule, name)
	}
	k.publish(b, topic, "good")
	r := k.subscribe(b, broker.Subscription{Topic: topic, Group: "g"})
	require.Equal(k, map[string]int{"good": 1}, r.ackUntil("good"))
	r.silent("it was refused at publish")
}

func testContractRefusesTopic(k *kit) {
	b := k.open()
	for _, topic := range []string{strings.Repeat("t", 46), "", "a/b", "a b", "ä", "a*"} {
		var violation *envelope.Violation
		require.ErrorAs(k, b.Publisher().Publish(topic, newMessage("p")), &violation, "topic %q", topic)
		errs := b.Publisher().PublishBatch(k.Context(), topic, []*message.Message{newMessage("p")})
		require.Len(k, errs, 1)
		require.ErrorAs(k, errs[0], &violation, "topic %q", topic)
		require.Error(k, b.Declare(k.Context(), topic, nil), "topic %q", topic)
		_, err := b.Subscriber(broker.Subscription{Topic: topic, Group: "g"})
		require.Error(k, err, "topic %q", topic)
	}
	for _, group := range []string{"", "a/b", strings.Repeat("g", 101)} {
		_, err := b.Subscriber(broker.Subscription{Topic: "t", Group: group})
		require.Error(k, err, "group %q", group)
	}
}
