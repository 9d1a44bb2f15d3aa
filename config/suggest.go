package config

import (
	"slices"
	"strings"
)

// suggest returns a half sentence that helps with the unknown name: the one that was probably meant, else all there are.
func suggest(name string, known []string) string {
	if best := closest(name, known); best != "" {
		return `; did you mean "` + best + `"?`
	}
	switch {
	case len(known) == 0:
		return ""
	case len(known) > 24:
		return ""
	}
	known = slices.Clone(known)
	slices.Sort(known)
	return "; known are: " + strings.Join(known, ", ")
}

// closest returns the known name that is so like name that it was probably meant, or "".
func closest(name string, known []string) string {
	name = strings.ToLower(name)
	best, least := "", 1<<30
	for _, k := range known {
		if d := unlike(name, strings.ToLower(k)); d < least {
			best, least = k, d
		}
	}
	if least > 2 {
		return ""
	}
	return best
}

// unlike is 0 to 2 for names that may well be meant for each other, and more for others.
func unlike(a, b string) int {
	plain := strings.NewReplacer("_", "", "-", "", ".", "", " ", "")
	pa, pb := plain.Replace(a), plain.Replace(b)
	if pa == pb {
		return 0
	}
	shorter := min(len(pa), len(pb))
	if d := distance(pa, pb); d <= 2 && d*3 <= shorter+1 {
		return d
	}
	if shorter >= 4 && (strings.HasPrefix(pa, pb) || strings.HasPrefix(pb, pa)) {
		return 2
	}
	// "max_retrys" for "retry": one of its words is meant.
	for _, word := range strings.FieldsFunc(a, func(r rune) bool { return r == '_' || r == '-' || r == ' ' }) {
		if len(word) >= 4 && word != a && distance(word, b) <= 1 {
			return 2
		}
	}
	return 1 << 20
}

// distance is the number of letters to insert, delete, change, or exchange with their neighbour.
func distance(a, b string) int {
	prev2, prev, row := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range prev {
		prev[j] = j
	}
	for i := 1; i <= len(a); i++ {
		row[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			row[j] = min(prev[j]+1, row[j-1]+1, prev[j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], prev2[j-2]+1)
			}
		}
		prev2, prev, row = prev, row, prev2
	}
	return prev[len(b)]
}
