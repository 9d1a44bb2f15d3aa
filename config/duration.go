package config

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// Duration is a time span that is written with units, days among them: "90d", "1h30m", "500ms".
type Duration time.Duration

// Units of a Duration.
const (
	Millisecond = Duration(time.Millisecond)
	Second      = Duration(time.Second)
	Minute      = Duration(time.Minute)
	Hour        = Duration(time.Hour)
	Day         = 24 * Hour
)

// Std returns d as the standard library's type.
func (d Duration) Std() time.Duration { return time.Duration(d) }

// String writes whole days as days, and leaves out zero parts at the end.
func (d Duration) String() string {
	if d != 0 && d%Day == 0 {
		return strconv.FormatInt(int64(d/Day), 10) + "d"
	}
	text := time.Duration(d).String()
	if strings.HasSuffix(text, "m0s") {
		text = strings.TrimSuffix(text, "0s")
	}
	if strings.HasSuffix(text, "h0m") {
		text = strings.TrimSuffix(text, "0m")
	}
	return text
}

var errNoUnit = errors.New("has no unit")

// ParseDuration reads a duration as time.ParseDuration does, with days ("d", 24 hours) as the first part. A number
// without a unit is an error, zero too.
func ParseDuration(text string) (Duration, error) {
	if _, err := strconv.ParseFloat(text, 64); err == nil {
		return 0, errNoUnit
	}
	rest, negative := strings.CutPrefix(text, "-")
	days, after, hasDays := strings.Cut(rest, "d")
	if !hasDays {
		d, err := time.ParseDuration(text)
		if err != nil {
			return 0, errors.New("is not a duration")
		}
		return Duration(d), nil
	}
	n, err := strconv.ParseFloat(days, 64)
	if err != nil || n < 0 || math.IsNaN(n) || n > float64(math.MaxInt64/int64(Day)) {
		return 0, errors.New("is not a duration")
	}
	total := time.Duration(n * float64(Day))
	if after != "" {
		d, err := time.ParseDuration(after)
		if err != nil || d < 0 || after[0] == '+' || total+d < total {
			return 0, errors.New("is not a duration")
		}
		total += d
	}
	if negative {
		total = -total
	}
	return Duration(total), nil
}

// parseSize reads a number of bytes, with or without a unit.
func parseSize(text string) (int64, error) {
	units := []struct {
		name string
		size int64
	}{{"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30}, {"kB", 1e3}, {"MB", 1e6}, {"GB", 1e9}, {"B", 1}}
	number, size := text, int64(1)
	for _, u := range units {
		if n, ok := strings.CutSuffix(text, u.name); ok {
			number, size = strings.TrimSpace(n), u.size
			break
		}
	}
	n, err := strconv.ParseInt(number, 10, 64)
	if err != nil || n > math.MaxInt64/size {
		return 0, fmt.Errorf("is not a size such as 1048576 or 1MiB")
	}
	return n * size, nil
}
