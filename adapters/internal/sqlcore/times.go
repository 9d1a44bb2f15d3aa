package sqlcore

import (
	"fmt"
	"time"
)

// TimeLayout is how databases without a type for it keep a time: fixed width, UTC, so that
// it sorts as text and the database's own functions can read it.
const TimeLayout = "2006-01-02T15:04:05.000000Z"

// Time reads a column of time, however the driver hands it out. NULL is the zero time.
type Time struct{ time.Time }

// Scan implements sql.Scanner.
func (t *Time) Scan(src any) error {
	switch v := src.(type) {
	case nil:
		t.Time = time.Time{}
	case time.Time:
		t.Time = v.UTC()
	case string:
		return t.parse(v)
	case []byte:
		return t.parse(string(v))
	default:
		return fmt.Errorf("read a time from %T", src)
	}
	return nil
}

func (t *Time) parse(s string) (err error) {
	if t.Time, err = time.Parse(TimeLayout, s); err != nil {
		t.Time, err = time.Parse(time.RFC3339Nano, s)
	}
	return err
}

// FormatTime writes t in TimeLayout.
func FormatTime(t time.Time) string { return t.UTC().Format(TimeLayout) }
