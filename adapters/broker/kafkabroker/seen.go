package kafkabroker

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"
	"time"

	"github.com/oncemill/oncemill/middleware/transact"
)

// keyID stands for an idempotency key, in memory and as the record key in the topic of keys: half a SHA-256.
type keyID [16]byte

func idOf(key string) keyID {
	sum := sha256.Sum256([]byte(key))
	return keyID(sum[:16])
}

// print is a fingerprint as it is kept: the sum apart from its kind, which many share.
type print struct {
	kind string
	sum  [sha256.Size]byte
}

// seen is one key in memory.
type seen struct {
	print  print
	failed bool
	at     int64 // Unix seconds
}

// seenKeys are the keys of one partition, about 150 bytes for each. It is used by one goroutine.
type seenKeys struct {
	retention time.Duration
	keys      map[keyID]seen
	ages      []age // oldest first, from gone on
	gone      int
	kinds     map[string]string
}

// age is a place in the order of expiry; it counts only while the key is of the same time.
type age struct {
	id keyID
	at int64
}

func newSeenKeys(retention time.Duration) *seenKeys {
	return &seenKeys{retention: retention, keys: map[keyID]seen{}, kinds: map[string]string{}}
}

func (s *seenKeys) lookup(key string) (transact.Entry, bool) {
	k, found := s.keys[idOf(key)]
	if !found {
		return transact.Entry{}, false
	}
	entry := transact.Entry{State: transact.Completed, Fingerprint: k.print.text()}
	if k.failed {
		entry.State = transact.Failed
	}
	return entry, true
}

func (s *seenKeys) add(id keyID, entry transact.Entry, at time.Time) {
	k := seen{print: s.print(entry.Fingerprint), failed: entry.State == transact.Failed, at: at.Unix()}
	s.keys[id] = k
	s.ages = append(s.ages, age{id, k.at})
}

func (s *seenKeys) remove(id keyID) { delete(s.keys, id) }

// expired returns up to limit keys whose retention is over. They stay until they are removed.
func (s *seenKeys) expired(now time.Time, limit int) []keyID {
	var ids []keyID
	for i := s.gone; i < len(s.ages) && len(ids) < limit; i++ {
		a := s.ages[i]
		if k, found := s.keys[a.id]; !found || k.at != a.at {
			if i == s.gone {
				s.gone++
			}
			continue
		}
		if now.Before(time.Unix(a.at, 0).Add(s.retention)) {
			break
		}
		ids = append(ids, a.id)
	}
	s.compact()
	return ids
}

// compact gives back the room of what is gone.
func (s *seenKeys) compact() {
	if s.gone > 1024 && s.gone > len(s.ages)/2 {
		s.ages = append([]age(nil), s.ages[s.gone:]...)
		s.gone = 0
	}
}

// print takes a fingerprint apart.
func (s *seenKeys) print(text string) print {
	i := strings.LastIndexByte(text, ':')
	sum, err := hex.DecodeString(text[i+1:])
	if err != nil || len(sum) != sha256.Size {
		return print{kind: s.intern(text)}
	}
	return print{kind: s.intern(text[:i+1]), sum: [sha256.Size]byte(sum)}
}

func (s *seenKeys) intern(kind string) string {
	if known, ok := s.kinds[kind]; ok {
		return known
	}
	s.kinds[kind] = kind
	return kind
}

func (p print) text() string {
	if p.sum == ([sha256.Size]byte{}) {
		return p.kind
	}
	return p.kind + hex.EncodeToString(p.sum[:])
}
