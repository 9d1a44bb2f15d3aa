package tally

import (
	"fmt"
	"strings"
)

// PerPayment are the patterns that stand unless others are configured, for payments of one topic.
func PerPayment(topic string) []string {
	return []string{topic, topic + ":{currency}", topic + ":{currency}:{from}"}
}

// CheckPatterns names the entry that is wrong.
func CheckPatterns(patterns []string) error {
	for i, pattern := range patterns {
		rest := strings.NewReplacer("{currency}", "", "{from}", "", "{to}", "").Replace(pattern)
		if problem := CheckName(pattern); problem != "" {
			return fmt.Errorf("per_payment[%d]: %s", i, problem)
		}
		if strings.ContainsAny(rest, "{}") {
			return fmt.Errorf("per_payment[%d]: the placeholders are {currency}, {from} and {to}", i)
		}
	}
	return nil
}
