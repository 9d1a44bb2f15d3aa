package natsbroker

import "strings"

// place is where a logical topic lives in JetStream.
type place struct {
	topic   string
	stream  string
	subject string
}

// leaseBucket is the KeyValue bucket that holds the leases of ordered subscriptions.
const leaseBucket = "oncemill-leases"

// assetName makes the name of a stream or durable from a topic or group. JetStream forbids dots in
// names, so each character is mapped to one of its own: two topics never share a stream. Subjects need no mapping.
func assetName(logical string) string {
	mapped := strings.Map(func(r rune) rune {
		switch r {
		case '.':
			return '_'
		case '_':
			return '='
		}
		return r
	}, logical)
	// JetStream keeps its own streams under these prefixes; '+' occurs in no other name.
	if strings.HasPrefix(mapped, "KV_") || strings.HasPrefix(mapped, "OBJ_") {
		return "+" + mapped
	}
	return mapped
}

// place says where topic lives: as configured, else by its name.
func (c *Config) place(topic string) place {
	p := place{topic: topic, stream: assetName(topic), subject: topic}
	named := c.Topics[topic]
	if named.Stream != "" {
		p.stream = named.Stream
	}
	if named.Subject != "" {
		p.subject = named.Subject
	}
	return p
}

// durable is the name of the group's consumer.
func (c *Config) durable(topic, group string) string {
	if name := c.Topics[topic].Durables[group]; name != "" {
		return name
	}
	return assetName(group)
}

// leaseKey names a consumer in the bucket of leases, whose keys may not have a '+'.
func leaseKey(stream, durable string) string {
	return strings.ReplaceAll(stream+"."+durable, "+", "/")
}
