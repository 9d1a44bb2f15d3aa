package dynamotx

import (
	"time"

	"github.com/oncemill/oncemill/middleware/outbox"
)

// The bits of an id, from the highest: whether the record is delayed; the number that its lane's counter gave, or of a delayed one the second for which it
// waits and the end of that number; how many items its payload has of its own; the lane. So an id leads to all items of its record, and records that
// are not due yet stand behind all others of their lane, where no query comes by.
const (
	numberBits = 53
	secondBits = 34
	restBits   = numberBits - secondBits
	partsBits  = 5

	maxParts = 1<<partsBits - 1
	delayed  = 1 << numberBits
)

// newID is the id of a record that has that number from the counter of its lane. due is the zero time for a record that is due at once.
func newID(lane int, number int64, due time.Time, parts int) int64 {
	if !due.IsZero() {
		number = delayed | second(due)<<restBits | number&(1<<restBits-1)
	}
	return (number<<partsBits|int64(parts))*outbox.Lanes + int64(lane)
}

// dueBy is the last id that a record may have which is due at that moment.
func dueBy(now time.Time) int64 {
	return (delayed|(second(now)+1)<<restBits)<<partsBits*outbox.Lanes - 1
}

// second is a moment's, within what an id can hold.
func second(t time.Time) int64 { return min(max(t.Unix(), 0), 1<<secondBits-2) }

func laneOf(id int64) int { return int(id % outbox.Lanes) }

func partsOf(id int64) int { return int(id / outbox.Lanes & maxParts) }
